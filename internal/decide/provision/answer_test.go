package provision

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/decide/topology"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

func no(code codes.Code) volume.Answer { return csi.AnswerOf(status.Error(code, "no")) }

const missing = `read secret ns/s: secrets "s" not found`

func (n Next) String() string {
	return [...]string{"await", "doubt", "save", "remove", "resolve", "reselect"}[n]
}

// verdictText is a verdict in words. "fails" is that the claim is looked at again after a back-off.
func verdictText(v Verdict) string {
	out, b := v.Next.String(), v.Because
	if v.Pause {
		out += " pause"
	}
	if v.Problem != "" {
		out += " fails"
	}
	out += "\n"
	if b.Reason != "" || v.Warn {
		out += fmt.Sprintf("%s %s: %s -> %s\n", map[bool]string{true: "Warning", false: "Normal"}[v.Warn], b.Reason,
			b.Message, b.Next)
	}
	if !strings.Contains(b.Message, v.Problem) {
		out += "problem: " + v.Problem + "\n"
	}
	return out + "\n"
}

// TestCodes: what each code means for the intent of a CreateVolume call. This is the table in docs/provisioning.md.
func TestCodes(t *testing.T) {
	full := intent()
	full.Requisite = []topology.Segment{{"zone": "a"}}
	selected := claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" })
	columns := []struct {
		name   string
		first  bool
		secret string
		after  func(*Intent, Creation) Verdict
	}{
		{"first", true, "", After},
		{"first*", true, missing, After},
		{"repeated", false, "", After},
		{"repeated*", false, missing, After},
		{"undo", false, "", AfterUndo},
		{"undo*", false, missing, AfterUndo},
	}
	out := "* is a call without the Secret that it wants\n" + strings.Repeat(" ", 18)
	for _, c := range columns {
		out += fmt.Sprintf("  %-9s", c.name)
	}
	for code := codes.OK; code <= codes.Unauthenticated+1; code++ {
		out = strings.TrimRight(out, " ") + fmt.Sprintf("\n%-18s", code)
		for _, c := range columns {
			made := Creation{Answer: no(code), First: c.first, Claim: selected}
			made.Missing = c.secret
			out += fmt.Sprintf("  %-9s", c.after(full, made).Next)
		}
	}
	golden.Equal(t, "testdata/codes.txt", strings.TrimRight(out, " ")+"\n")
}

// verdictCase is an answer, in words, and what is decided about it.
type verdictCase struct {
	argues, answer string
	verdict        Verdict
}

func TestAnswers(t *testing.T) {
	var out strings.Builder
	for _, cases := range [][]verdictCase{refusals(), withoutData(), misplaced(), savings(), removals(), goneSources()} {
		for _, c := range cases {
			fmt.Fprintf(&out, "# %s\n%s\n----\n%s", c.argues, c.answer, verdictText(c.verdict))
		}
	}
	for _, c := range []struct {
		argues string
		why    volume.Because
	}{
		{"a driver that takes long", Slow(intent())},
		{"a Secret that is not read", SecretUnread(intent(), missing)},
		{"a Secret that is gone keeps no volume", WithoutSecret("h", missing)},
	} {
		fmt.Fprintf(&out, "# %s\n%s: %s -> %s\n\n", c.argues, c.why.Reason, c.why.Message, c.why.Next)
	}
	golden.Equal(t, "testdata/answers.txt", out.String())
}

// withoutData are calls of drivers with volumes of node n1 only, which do not have the data of which one is to be made.
func withoutData() []verdictCase {
	local := func(source string) *Intent {
		in := intent()
		in.Node, in.SourceName, in.Snapshot = "n1", source, source
		return in
	}
	selected := claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" })
	refused := func(on string) *corev1.PersistentVolumeClaim {
		c := selected.DeepCopy()
		c.Annotations[volume.AnnRefusedOn] = on
		return c
	}
	answered := func(c *corev1.PersistentVolumeClaim, selects bool) Creation {
		return Creation{Answer: no(codes.NotFound), First: true, Claim: c, Selects: selects}
	}
	const asked = "CreateVolume on node n1 of snapshot s: NotFound"
	return []verdictCase{
		{"the snapshot may be on another node", asked, After(local("s"), answered(selected, true))},
		{"other nodes have said the same", asked, After(local("s"), answered(refused("n2,n3"), true))},
		{"this one has, too", asked, After(local("s"), answered(refused("n1,n2"), true))},
		{"a cluster's scheduler has selected the node", asked, After(local("s"), answered(selected, false))},
		{"nobody has selected a node", asked, After(local("s"), answered(claim(), true))},
		{"the claim is gone", asked, After(local("s"), answered(nil, true))},
		{"a driver for all nodes", "CreateVolume of snapshot s for node n1: NotFound", func() Verdict {
			in := local("s")
			in.Node = ""
			return After(in, answered(selected, true))
		}()},
		{"no data are to be copied", "CreateVolume on node n1: NotFound", After(local(""), answered(selected, true))},
	}
}

// TestRefused: a claim names the nodes that could not make its volume, each once, and not too many.
func TestRefused(t *testing.T) {
	many := make([]string, maxRefusals)
	for i := range many {
		many[i] = fmt.Sprint("m", i)
	}
	full := strings.Join(many, ",")
	for before, want := range map[string]string{
		"": "n1", "n2": "n2,n1", "n1,n2": "n2,n1", full: strings.Join(many[1:], ",") + ",n1", strings.Repeat("x", 5000): "n1",
	} {
		c := claim(func(c *corev1.PersistentVolumeClaim) {
			c.Annotations[volume.AnnSelectedNode], c.Annotations[volume.AnnRefusedOn] = "n1", before
		})
		got := Refused(c)
		if on := got.Annotations[volume.AnnRefusedOn]; on != want || volume.SelectedNode(got.Annotations) != "" {
			t.Errorf("%.40s: %q, selected %q", before, on, volume.SelectedNode(got.Annotations))
		}
	}
}

// refusals are CreateVolume calls that ended with an error.
func refusals() []verdictCase {
	zonal := intent()
	zonal.Requisite = []topology.Segment{{"zone": "a"}}
	selected := claim(func(c *corev1.PersistentVolumeClaim) { c.Annotations[volume.AnnSelectedNode] = "n1" })
	gone := csi.AnswerOf(errors.New("d.example.com: driver has gone")) //nolint:err113 // it is not a gRPC status
	bare := no(codes.InvalidArgument)
	bare.Missing = missing
	return []verdictCase{
		{
			"a no that proves that nothing was made", "CreateVolume, first: InvalidArgument",
			After(intent(), Creation{Answer: no(codes.InvalidArgument), First: true}),
		},
		{
			"a no that does not", "CreateVolume, first: Internal",
			After(intent(), Creation{Answer: no(codes.Internal), First: true}),
		},
		{
			"no answer", "CreateVolume, first: DeadlineExceeded",
			After(intent(), Creation{Answer: no(codes.DeadlineExceeded), First: true}),
		},
		{
			"a driver that was not asked", "CreateVolume, first: no gRPC status",
			After(intent(), Creation{Answer: gone, First: true}),
		},
		{
			"the segment of the selected node is full", "CreateVolume in zone a for node n1: ResourceExhausted",
			After(zonal, Creation{Answer: no(codes.ResourceExhausted), Claim: selected}),
		},
		{
			"no node was selected", "CreateVolume in zone a: ResourceExhausted",
			After(zonal, Creation{Answer: no(codes.ResourceExhausted), Claim: claim()}),
		},
		{
			"the claim is gone", "CreateVolume in zone a for a claim that is gone: ResourceExhausted",
			After(zonal, Creation{Answer: no(codes.ResourceExhausted)}),
		},
		{
			"all nodes reach the room", "CreateVolume for node n1: ResourceExhausted",
			After(intent(), Creation{Answer: no(codes.ResourceExhausted), Claim: selected}),
		},
		{
			"another no is not about the room", "CreateVolume in zone a for node n1: OutOfRange",
			After(zonal, Creation{Answer: no(codes.OutOfRange), Claim: selected}),
		},
		{
			"what nobody wants was made, or is now", "CreateVolume, to undo: OK",
			AfterUndo(intent(), Creation{Answer: no(codes.OK), Volume: Answer{Handle: "h"}}),
		},
		{
			"another's volume is not deleted", "CreateVolume, to undo: OK, the id of pv9",
			AfterUndo(intent(), Creation{Answer: no(codes.OK), Volume: Answer{Handle: "h"}, TakenBy: "pv9"}),
		},
		{
			"what nobody wants was not made", "CreateVolume, to undo: NotFound",
			AfterUndo(intent(), Creation{Answer: no(codes.NotFound)}),
		},
		{
			"what nobody wants may be there", "CreateVolume, to undo: Unavailable",
			AfterUndo(intent(), Creation{Answer: no(codes.Unavailable)}),
		},
		{
			"a no that is not believed proves nothing", "CreateVolume, to undo: an unknown outcome with NotFound",
			AfterUndo(intent(), Creation{Answer: volume.Answer{Code: codes.NotFound.String(), Text: "not understood"}}),
		},
		{
			"the driver may have said no because of the Secret", "CreateVolume, to undo, without its Secret: InvalidArgument",
			AfterUndo(intent(), Creation{Answer: bare}),
		},
	}
}

// savings are answers of the API server to a volume object.
// misplaced are volumes that were made elsewhere than required, or not.
func misplaced() []verdictCase {
	in := intent()
	in.Requisite = []topology.Segment{{"zone": "a"}, {"zone": "b", "rack": "1"}}
	made := func(segments ...topology.Segment) Verdict {
		return After(in, Creation{Answer: csi.AnswerOf(nil), Volume: Answer{Handle: "h", Segments: segments}})
	}
	return []verdictCase{
		{"it is where it was required", "made in zone=b", made(topology.Segment{"zone": "b"})},
		{
			"one of its segments is enough", "made in zone=c and zone=a",
			made(topology.Segment{"zone": "c"}, topology.Segment{"zone": "a"}),
		},
		{"a driver that tells nothing is believed", "made somewhere", made()},
		{"a place may have other keys", "made in region=1", made(topology.Segment{"region": "1"})},
		{"it is where nobody wanted it", "made in zone=c", made(topology.Segment{"zone": "c"})},
		{"one key contradicts", "made in zone=b,rack=2", made(topology.Segment{"zone": "b", "rack": "2"})},
	}
}

func savings() []verdictCase {
	in, a := intent(), Answer{Handle: "h"}
	object := func(change func(*corev1.PersistentVolume)) Saving {
		v := Object(in, a, "")
		change(v)
		return Saving{Object: v}
	}
	retained := intent()
	retained.Reclaim = corev1.PersistentVolumeReclaimRetain
	kind := corev1.SchemeGroupVersion.WithKind("PersistentVolume").GroupKind()
	lost := errors.New("the answer is lost") //nolint:err113 // an error of no kind
	return []verdictCase{
		{"it is written", "created", AfterSave(in, a, Saving{Object: Object(in, a, ""), Made: true})},
		{
			"it was written before", "ours exists",
			AfterSave(in, a, object(func(*corev1.PersistentVolume) {})),
		},
		{
			"it is never taken: the volume goes", "Invalid",
			AfterSave(in, a, Saving{Err: apierrors.NewInvalid(kind, in.Name, nil)}),
		},
		{
			"nor is it when nobody here may write it", "Forbidden",
			AfterSave(in, a, Saving{Err: apierrors.NewForbidden(corev1.Resource("persistentvolumes"), in.Name, lost)}),
		},
		{
			"one to retain whose claim is gone stays", "Forbidden",
			AfterSave(retained, a, Saving{Err: apierrors.NewForbidden(corev1.Resource("persistentvolumes"), in.Name, lost)}),
		},
		{"it may be written", "no answer", AfterSave(in, a, Saving{Err: lost})},
		{
			"the name is another driver's", "one of driver x exists",
			AfterSave(in, a, object(func(v *corev1.PersistentVolume) { v.Spec.CSI.Driver = "x" })),
		},
		{
			"or another volume's", "one with the handle x exists",
			AfterSave(in, a, object(func(v *corev1.PersistentVolume) { v.Spec.CSI.VolumeHandle = "x" })),
		},
		{
			"or no CSI volume's", "one without CSI exists",
			AfterSave(in, a, object(func(v *corev1.PersistentVolume) { v.Spec.CSI = nil })),
		},
		{
			"another claim has the volume: it stays", "one of claim u2 exists",
			AfterSave(in, a, object(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef.UID = "u2" })),
		},
		{
			"or nobody", "one of no claim exists",
			AfterSave(in, a, object(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil })),
		},
	}
}

// removals are DeleteVolume calls for what must not become a volume object.
func removals() []verdictCase {
	bare := no(codes.PermissionDenied)
	bare.Missing = missing
	return []verdictCase{
		{"nobody wanted it", "DeleteVolume: OK", AfterRemove(intent(), "", no(codes.OK))},
		{"it was too small", "DeleteVolume of what was too small: OK", AfterRemove(intent(), "too small", no(codes.OK))},
		{"it is not deleted", "DeleteVolume: Internal", AfterRemove(intent(), "", no(codes.Internal))},
		{
			"it may be deleted", "DeleteVolume of what was too small: Unavailable",
			AfterRemove(intent(), "too small", no(codes.Unavailable)),
		},
		{
			"perhaps for want of a Secret", "DeleteVolume without its Secret: PermissionDenied",
			AfterRemove(intent(), "", bare),
		},
	}
}

// goneSources are those that went before CreateVolume was called.
func goneSources() []verdictCase {
	const gone = "claim ns/source: the source of its data is being deleted"
	return []verdictCase{
		{
			"nothing was asked yet", "the source of a new intent goes",
			AfterSourceGone(Plan{Step: Record, Intent: intent()}, gone),
		},
		{
			"it may be copied already", "the source of an old intent goes",
			AfterSourceGone(Plan{Step: Create, Intent: intent()}, gone),
		},
	}
}

// TestAnswersThatMustNotBecomeVolumes: what is wrong with an answer is told, and what is ours alone is deleted.
func TestAnswersThatMustNotBecomeVolumes(t *testing.T) {
	in := &Intent{Driver: driver, Name: "pvc-u1", Bytes: 100}
	restore, clone := &Intent{Driver: driver, Bytes: 1, Snapshot: "s"}, &Intent{Driver: driver, Bytes: 1, Source: "s"}
	of := func(bytes int64, source, snapshot string) string {
		return fmt.Sprintf("%d bytes source=%q snapshot=%q", bytes, source, snapshot)
	}
	var out strings.Builder
	for _, c := range []struct {
		argues  string
		in      *Intent
		answer  Answer
		takenBy string
	}{
		{"as asked", in, Answer{Handle: "h", Bytes: 100}, ""},
		{"larger", in, Answer{Handle: "h", Bytes: 200}, ""},
		{"of a size that the driver does not tell", in, Answer{Handle: "h"}, ""},
		{"the volume of a claim whose volume has the same, cut name", in, Answer{Handle: "h", Bytes: 100}, "pvc-u1"},
		{"smaller: ours to delete", in, Answer{Handle: "h", Bytes: 99}, ""},
		{"another volume's: not ours to delete", in, Answer{Handle: "h", Bytes: 99}, "pv9"},
		{"restored", restore, Answer{Handle: "h", Bytes: 1, Snapshot: "s"}, ""},
		{"copied", clone, Answer{Handle: "h", Bytes: 1, Source: "s"}, ""},
		{"with a source that nobody asked for", in, Answer{Handle: "h", Bytes: 100, Source: "x", Snapshot: "y"}, ""},
		{"empty instead of restored", restore, Answer{Handle: "h", Bytes: 1}, ""},
		{"empty instead of a copy", clone, Answer{Handle: "h", Bytes: 1}, ""},
	} {
		fmt.Fprintf(&out, "# %s\nasked for %s\nmade %s taken-by=%q\n----\n%s", c.argues,
			of(c.in.Bytes, c.in.Source, c.in.Snapshot), of(c.answer.Bytes, c.answer.Source, c.answer.Snapshot), c.takenBy,
			verdictText(After(c.in, Creation{Answer: no(codes.OK), Volume: c.answer, TakenBy: c.takenBy})))
	}
	golden.Equal(t, "testdata/made.txt", out.String())
}
