package attributes

import (
	"regexp"
	"slices"
	"strings"

	"volplane.dev/volplane/test/internal/differential"
)

// These are the reasons why changes of attributes may differ.
const (
	reasonNoticed = "a class of attributes that is made later is noticed; Kubernetes looks for it again when the claim" +
		" wants another one, or when its program restarts"
	reasonStrange = "a class of attributes of another driver is refused, and the claim says Infeasible; Kubernetes" +
		" asks its own driver for what it says"
	reasonLeaving = "the volume of a claim that is being deleted is not changed or grown any more; Kubernetes goes on"
	reasonForGood = "what a driver has refused with InvalidArgument is asked for again after five minutes, when the " +
		"controller restarts as well; the pause of Kubernetes is short here, and there is no pause after a restart"
)

// modifyReason is one of the reasons; explains says whether it is the reason for the differences about a claim.
type modifyReason struct {
	reason   string
	explains func(about changed) bool
}

// changed is a claim in both states, with its volume.
type changed struct {
	difference
	claim        string
	ours, theirs string
}

// modifyReasons are all reasons that are on purpose.
func modifyReasons() []modifyReason {
	return []modifyReason{
		{reasonNoticed, func(about changed) bool {
			return strings.Contains(about.theirs, " change=Pending:") && differential.Has(about.difference.Ours,
				"attributes "+differential.Field(about.theirs, "wants=")+" of ") &&
				!strings.Contains(about.ours, " change=Pending:")
		}},
		{reasonStrange, func(about changed) bool {
			return strings.Contains(about.ours, " wants=strange ") && !strings.Contains(about.ours, "strange is in progress")
		}},
		{reasonLeaving, func(about changed) bool {
			return strings.Contains(about.ours, " going=true ") && (!strings.Contains(about.ours, " change=none ") ||
				differential.Field(about.ours, "wants=") != differential.Field(about.ours, "has=") ||
				differential.Field(about.ours, "requests=") != differential.Field(about.ours, "capacity="))
		}},
		{reasonForGood, func(about changed) bool {
			return strings.Contains(about.ours, " change=Infeasible:"+differential.Field(about.ours, "wants=")+" ")
		}},
	}
}

// modifyRows judge changes of attributes.
func modifyRows() []row {
	var out []row
	for _, r := range modifyReasons() {
		out = append(out, row{Reason: r.reason, Explains: func(d difference, line string) bool {
			about, ok := changedIn(d, line)
			return ok && r.explains(about)
		}})
	}
	return append(out, row{
		Reason: "whether a call was under way when the controllers ended depends on their pauses; what it has done is " +
			"undone when the driver does what is asked next",
		Explains: func(d difference, line string) bool {
			about, ok := changedIn(d, line)
			v := "-" + strings.Replace(about.claim, "c", "v", 1)
			// Such a call prevents a claim whose class was deleted since from reporting that it waits for the class.
			begun := func(l string) string { return strings.Replace(l, " change=Pending:", " change=InProgress:", 1) }
			return ok && !strings.Contains(about.ours, " change=none ") && begun(about.ours) == begun(about.theirs) &&
				differential.Has(slices.Concat(d.Ours, d.Theirs), differential.Unanswered+differential.MethodModify, v)
		},
	}, row{
		Reason: "whether a call was under way when the controllers ended and the claim was deleted depends on their " +
			"pauses, too; what it has done stays",
		Explains: func(d difference, line string) bool {
			found := regexp.MustCompile(`^stored \{"ID":"id-\S+?-v([0-9]+)"`).FindStringSubmatch(line)
			return found != nil && differential.LineOf(d.Ours, "claim c"+found[1]+" ") == "" &&
				differential.Has(d.Ours, differential.Unanswered+differential.MethodModify,
					"-v"+found[1]) != differential.Has(d.Theirs, differential.Unanswered+differential.MethodModify, "-v"+found[1])
		},
	})
}

// changedIn returns the claim that a line is about.
func changedIn(d difference, line string) (changed, bool) {
	for _, l := range slices.Concat(d.Ours, d.Theirs) {
		claim, _, ok := strings.Cut(strings.TrimPrefix(l, "claim "), " ")
		if !ok || !strings.HasPrefix(l, "claim ") ||
			!differential.About(line, []string{claim, strings.Replace(claim, "c", "v", 1)}) {
			continue
		}
		return changed{
			d, claim, differential.LineOf(d.Ours, "claim "+claim+" "),
			differential.LineOf(d.Theirs, "claim "+claim+" "),
		}, true
	}
	return changed{}, false
}
