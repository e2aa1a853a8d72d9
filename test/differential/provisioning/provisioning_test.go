package provisioning

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestProvisionerIsKubernetes plays the same sequences to volplane's binder, protection and provisioner and
// to those of Kubernetes, each with a driver of its own. It compares all claims and volumes, the calls of
// the drivers and their volumes.
func TestProvisionerIsKubernetes(t *testing.T) {
	t.Parallel()
	playProvisioning(t, drawProvisioning, func(side) {}, func(*csitest.Config) {})
}

// playProvisioning plays sequences to two sides that provision. prepare creates objects first, and change
// configures the drivers.
func playProvisioning(t *testing.T, draw func(uint64, int) sequence, prepare func(side), change func(*csitest.Config)) {
	t.Helper()
	ours, theirs := differential.NewSide(t, "volplane", provisioning()), differential.NewSide(t, "kubernetes",
		provisioning())
	prepare(ours)
	prepare(theirs)
	drivers := ours.Storage.Start(t, change)
	theirs.Storage.Start(t, change)
	ours.StartController(func() func() { return ours.Ours(t, drivers, "binder", "protection", "provisioner") })
	theirs.StartController(func() func() { return theirs.Theirs(t, upstream.TheirBinder...) })
	theirs.StartController(func() func() { return theirs.TheirProvisioner(t, theirs.Storage.Driver) })
	differential.CompareAll(t, &differential.Differential{
		Sides: []side{ours, theirs}, Few: 10, Draw: draw, Allowed: provisioningMayDiffer, Counted: map[string]int{},
	})
}

// provisioning compares claims and volumes.
func provisioning() topic {
	return topic{
		Pause: upstream.SyncPeriod / 4, States: provisioningStates, Versions: differential.BoundVersions,
		Awake: differential.AwakeBinding, Touch: touchBound,
		Remove: removeSnapshots,
	}
}

func provisioningStates(ctx context.Context, s side) (state, error) {
	return s.BoundStates(ctx, snapshotted)
}

// provisioningMayDiffer returns the reasons why two states after provisioning
// may differ, "" if there is a line without one.
func provisioningMayDiffer(ours, theirs []string) string {
	return differential.Explain(ours, theirs, rows())
}

// rows returns all reasons. The first that explains a line is counted.
func rows() []row { return slices.Concat(rowsOfCalls(), rowsOfObjects(), rowsOfSecrets()) }

// rowsOfCalls returns the reasons for different calls.
func rowsOfCalls() []row {
	return []row{
		{
			Reason: "after InvalidArgument the provisioner of Kubernetes asks again in five minutes, whatever happens; here " +
				"after a pause that grows, or when a user edits the claim",
			Explains: func(d difference, line string) bool {
				return claimIn(line) != "" && differential.Has(d.Theirs,
					"answered CreateVolume of pvc-"+claimIn(line)+" with InvalidArgument")
			},
		},
		{
			Reason: "after a refusal volplane does not ask the same again before a pause is over that grows, whatever is " +
				"edited; the pauses of Kubernetes' provisioner are short here",
			Explains: func(d difference, line string) bool {
				name := claimIn(line)
				paused := differential.Has(d.Ours, "answered CreateVolume of pvc-"+name+" with ") &&
					differential.Has(d.Ours, "claim "+name+" Pending")
				answer := strings.HasPrefix(line, "answered CreateVolume of ") && slices.Contains(d.OnlyTheirs, line)
				return paused && (answer || differential.Has(d.OnlyOurs, "claim "+name+" Pending"))
			},
		},
		{
			Reason: "whether a call was under way when the controllers ended depends on their pauses; what it has done shows " +
				"when the driver is asked again",
			Explains: doneUnheard,
		},
		{
			Reason:   "who gets a volume that a user takes from its claim while other claims wait is not promised",
			Explains: handedOn,
		},
		{
			Reason: "when the driver did not say whether it made a volume, volplane goes on with what it asked, and undoes it " +
				"when the claim goes; Kubernetes asks what class and node say now, or forgets it, and keeps a volume with policy " +
				"Retain that no claim had",
			Explains: wentOn,
		},
	}
}

// rowsOfObjects returns the reasons for different objects.
func rowsOfObjects() []row {
	return []row{
		{
			Reason: "when a user takes the claim from a volume that is being deleted, protection and binder race in " +
				"Kubernetes, and the claim may lose its volume; here it keeps it",
			Explains: func(d difference, line string) bool {
				return differential.Has(d.OnlyOurs, "volume ", " Bound for "+claimIn(line)+" ", "going=true")
			},
		},
		{
			Reason: "a selected node that cannot have the volume is taken from the claim, so that another one is selected; " +
				"Kubernetes takes only one that has gone",
			Explains: func(d difference, line string) bool {
				return unselected(line, d.OnlyTheirs, d.OnlyOurs, `\w+`) &&
					!differential.Has(d.Ours, "answered CreateVolume of pvc-"+claimIn(line)+" with ResourceExhausted")
			},
		},
		{
			Reason: "a claim keeps a node that has gone while its class, its secret, its source or what the driver has been " +
				"asked already keep it from having a volume anywhere; Kubernetes looks at the node first",
			Explains: func(d difference, line string) bool { return unselected(line, d.OnlyOurs, d.OnlyTheirs, gone) },
		},
		{
			Reason: "Kubernetes protects what a copy is made of before it finds out that it cannot ask for the copy; here it " +
				"is protected when the copy is asked for",
			Explains: protected,
		},
		{
			Reason: "a claim is kept while a copy of it is asked for; Kubernetes keeps it while any claim waits that wants " +
				"one, though no driver can be asked",
			Explains: keptSource,
		},
		{
			Reason: "a snapshot is protected while a driver may make a volume of it; in Kubernetes before the first attempt " +
				"and after each that failed, too, for ever if the claim goes then",
			Explains: protectedSnapshot,
		},
		{
			Reason: "no volume is made for a claim that is being deleted, though its consumer is still there; " +
				"Kubernetes makes one",
			Explains: func(d difference, line string) bool {
				return differential.Has(d.OnlyOurs, "claim "+claimIn(line)+" Pending", "going=true") &&
					differential.Has(d.OnlyTheirs, "asked CreateVolume", `"pvc-`+claimIn(line)+`"`)
			},
		},
		{
			Reason: "the protection of a volume that is being deleted goes with its provisioner's finalizer, in one write, " +
				"when the driver has deleted it; in Kubernetes before",
			Explains: func(d difference, line string) bool {
				return slices.ContainsFunc(d.OnlyOurs, func(l string) bool {
					other := strings.Replace(l, " "+volume.FinalizerVolumeProtection+"]", "]", 1)
					return strings.Contains(l, volume.FinalizerProvisioner) &&
						differential.Has([]string{l}, "volume ", "going=true") &&
						slices.Contains(d.OnlyTheirs, other) && (line == l || line == other)
				})
			},
		},
	}
}

func rowsOfSecrets() []row {
	return []row{
		{
			Reason: "a template of a secret with a $ that begins no ${token} is a mistake; Kubernetes makes something of it",
			Explains: func(d difference, line string) bool {
				return differential.About(line, claimsOf(d, `\$[^{]|\$"|\$\{[^}"]*"`))
			},
		},
		{
			Reason: "a volume that was not made here has no deletion secret; Kubernetes looks for one in the class that has " +
				"that name now",
			Explains: func(d difference, line string) bool {
				return differential.Has(d.Ours, "class ", "secret-name") && regexp.MustCompile(`^volume v|-v[0-9]+"`).MatchString(line)
			},
		},
	}
}

// doneUnheard says whether a line is of a volume that only one side's driver has,
// because the other was not called to create it, or was called to delete it, when calls
// got no answer; the work is still to be done at both.
func doneUnheard(d difference, line string) bool {
	keeps, lacks := d.Ours, d.Theirs
	if slices.Contains(d.OnlyTheirs, line) {
		keeps, lacks = d.Theirs, d.Ours
	}
	name := "pvc-" + claimIn(line)
	only := func(one, other []string, call, undone string) bool {
		return differential.Has(one, differential.Unanswered+call) &&
			!differential.Has(other, differential.Unanswered+call) &&
			differential.Has(one, undone) && differential.Has(other, undone)
	}
	return strings.HasPrefix(line, "stored ") &&
		(only(keeps, lacks, "CreateVolume of "+name, "claim "+claimIn(line)+" Pending") ||
			only(lacks, keeps, "DeleteVolume of id-"+name, "volume "+name+" "))
}

// handedOn says whether a line is about claims that each have the same volume on one of the sides.
func handedOn(d difference, line string) bool {
	bound := regexp.MustCompile(`^volume (\S+) Bound for (\S+) `)
	for _, l := range d.OnlyOurs {
		ours := bound.FindStringSubmatch(l)
		for _, l := range d.OnlyTheirs {
			if theirs := bound.FindStringSubmatch(l); ours != nil && theirs != nil && ours[1] == theirs[1] &&
				ours[2] != theirs[2] && differential.About(line, []string{ours[2], theirs[2]}) {
				return true
			}
		}
	}
	return false
}

// goesToAnother says whether two states differ only in which claim has which volume.
func goesToAnother(ours, theirs []string) bool {
	d := difference{
		Ours: ours, Theirs: theirs, OnlyOurs: differential.Without(ours, theirs),
		OnlyTheirs: differential.Without(theirs, ours),
	}
	return !slices.ContainsFunc(slices.Concat(d.OnlyOurs, d.OnlyTheirs), func(l string) bool { return !handedOn(d, l) })
}

// wentOn says whether a line is about a claim whose volume may exist, and which has since lost its class or its node,
// or is gone.
func wentOn(d difference, line string) bool {
	both := slices.Concat(d.Ours, d.Theirs)
	name := claimIn(line)
	answered := func(c codes.Code) bool {
		return differential.Has(both, "answered CreateVolume of pvc-"+name+" with "+c.String())
	}
	unknown := differential.Has(both, differential.Unanswered+"CreateVolume of pvc-"+name) ||
		slices.ContainsFunc([]codes.Code{codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.Aborted}, answered)
	claims := slices.DeleteFunc(slices.Clone(both),
		func(l string) bool { return !strings.HasPrefix(l, "claim "+name+" ") })
	if len(claims) == 0 {
		// Nor do these say whether it did.
		return unknown ||
			slices.ContainsFunc([]codes.Code{codes.Internal, codes.Unknown, codes.DataLoss, codes.FailedPrecondition}, answered)
	}
	return unknown && lostItsWay(d, name, claims)
}

// lostItsWay says whether a claim has lost its class or its node since its volume was
// requested.
func lostItsWay(d difference, name string, claims []string) bool {
	class := regexp.MustCompile(` class=(\w+) `).FindStringSubmatch(claims[0])[1]
	asked := 0
	for _, l := range d.Theirs {
		if strings.HasPrefix(l, `asked CreateVolume {"name":"pvc-`+name+`"`) {
			asked++
		}
	}
	noNode := class == "late" && !differential.Has(claims, "selected-node")
	// A node was selected since that cannot have the volume that this side continues to create.
	elsewhere := differential.Has(d.Ours, "claim "+name+" Bound ", "selected-node") &&
		differential.Has(d.Theirs, "claim "+name+" Pending ",
			"selected-node") && differential.Has(d.Ours, "asked CreateVolume", `"pvc-`+name+`"`, "accessibility_requirements")
	return asked > 1 || noNode || elsewhere || !differential.Has(d.Ours, "class "+class+" of ")
}

// protected says whether a line differs only because Kubernetes protects a claim although no clone of it was requested.
func protected(d difference, line string) bool {
	const finalizer = " " + volume.FinalizerCloning
	name := claimIn(line)
	for _, l := range d.OnlyTheirs {
		if strings.HasPrefix(l, "claim "+name+" ") && slices.Contains(d.OnlyOurs, strings.Replace(l, finalizer, "", 1)) {
			copies := names(d.Ours, "claim ", func(l string) bool {
				return strings.Contains(l, " source=PersistentVolumeClaim:"+name+".")
			})
			return !slices.ContainsFunc(copies, func(c string) bool { return differential.Has(d.Ours, "asked CreateVolume", `"pvc-`+c+`"`) })
		}
	}
	return false
}

// keptSource says whether a line is about a claim that is deleted here, while it is the source of one that waits.
func keptSource(d difference, line string) bool {
	name := claimIn(line)
	return differential.Has(d.OnlyTheirs, "claim "+name+" ", volume.FinalizerCloning, "going=true") &&
		!differential.Has(d.Ours, "claim "+name+" ") &&
		differential.Has(d.Theirs, "claim ", " Pending ", " source=PersistentVolumeClaim:"+name+".")
}

// claimIn returns the claim of a line, or "".
func claimIn(line string) string {
	found := regexp.MustCompile(`(?:^claim |pvc-| for )(c[0-9]+)\b`).FindStringSubmatch(line)
	if found == nil {
		return ""
	}
	return found[1]
}

// claimsOf returns the claims of the classes whose lines match.
func claimsOf(d difference, pattern string) []string {
	match := regexp.MustCompile(pattern)
	classes := names(d.Ours, "class ", match.MatchString)
	return names(slices.Concat(d.Ours, d.Theirs), "claim ", func(l string) bool {
		return slices.ContainsFunc(classes, func(c string) bool { return strings.Contains(l, " class="+c+" ") })
	})
}

// names returns the second words of the lines that have the prefix and match.
func names(lines []string, begin string, such func(string) bool) []string {
	var out []string
	for _, l := range lines {
		if strings.HasPrefix(l, begin) && such(l) {
			out = append(out, strings.Fields(l)[1])
		}
	}
	return out
}
