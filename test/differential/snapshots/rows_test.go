package snapshots

import (
	"regexp"
	"slices"
	"strings"

	"volplane.dev/volplane/internal/volume"
	"volplane.dev/volplane/test/internal/differential"
)

// snapshotRow is one reason why facts about a snapshot may differ; explains says whether it is the reason for all
// differences about one.
type snapshotRow struct {
	reason   string
	explains func(about subject, line string) bool
}

// subject is the snapshot, or the content without one, that a line is about, in both states.
type subject struct {
	difference
	// shot is the name of the snapshot, and content that of its content, or "".
	shot, content string
}

// snapshotRows judge what is about snapshots.
func snapshotRows() []row {
	var out []row
	for _, r := range snapshotReasons() {
		out = append(out, row{Reason: r.reason, Explains: func(d difference, line string) bool {
			all := subjectsOf(d, line)
			return slices.ContainsFunc(all, func(about subject) bool { return r.explains(about, line) })
		}})
	}
	return append(out, row{
		Reason: "Kubernetes' snapshotter writes all annotations of a content together, whenever it asks for the " +
			"snapshot again, and so takes away what the snapshot-controller has just written there",
		Explains: func(d difference, line string) bool { return slices.ContainsFunc(subjectsOf(d, line), overwritten) },
	}, row{
		Reason: "whether a call was under way when the controllers ended depends on their pauses; what it has done shows " +
			"when the driver is asked again",
		Explains: func(d difference, line string) bool {
			id, ok := strings.CutPrefix(line, "stored snapshot ")
			return ok && slices.ContainsFunc([]string{
				"DeleteSnapshot of " + id, "CreateSnapshot of " + strings.TrimPrefix(id, "id-"),
			}, func(call string) bool {
				return differential.Has(d.Ours, differential.Unanswered, call) != differential.Has(d.Theirs,
					differential.Unanswered, call)
			})
		},
	})
}

const (
	reasonClaim = "Kubernetes keeps a claim for a snapshot as long as it cannot begin to take it; here a claim is" +
		" kept from when the content is made on"
	reasonMismatch = "a class of another driver than the volume's is refused; Kubernetes asks the driver of the " +
		"class"
	reasonClass = "a snapshot that has a content needs no class; Kubernetes does nothing for one whose class has " +
		"gone, and calls that its error"
	reasonParameters = "a content has the parameters of its class, so that the class may go; Kubernetes then never " +
		"takes the snapshot"
	reasonLook   = "an imported snapshot can be asked for without its class; Kubernetes does not ask"
	reasonSecret = "a snapshot is deleted without its Secret when that has gone; Kubernetes waits for the Secret " +
		"for ever"
	reasonShared = "a snapshot of a driver stays as long as another content names it; Kubernetes deletes it"
	reasonIntent = "an error after which the driver may have the snapshot nevertheless is no reason to forget it; " +
		"Kubernetes forgets it after each error that its code calls final"
	reasonUnseen = "an imported snapshot is deleted with its content even if the driver has not yet " +
		"reported its state; Kubernetes leaves it"
	reasonUnknown = "a class with a parameter that is reserved and unknown is refused; Kubernetes makes a content " +
		"of it, which its driver is never asked for"
	reasonTime = "without a creation time from the driver, a snapshot has the time when it was requested, or no time;" +
		" Kubernetes shows the beginning of 1970"
	reasonGoing = "a claim is kept until the snapshot that is being taken of it has gone; Kubernetes lets the " +
		"claim go when a user deletes the snapshot, while its driver may create it"
	reasonPending = "a content is not marked for deletion with its snapshot while a claim is restored from it; " +
		"Kubernetes marks it, and who deletes the content then takes the data from the claim"
	reasonOrphan = "a content that a user deletes goes when its snapshot does not exist any more; Kubernetes " +
		"keeps it for ever"
	reasonSource = "a snapshot is kept before its content is looked at; Kubernetes keeps it only if the content is" +
		" not another's"
	reasonLeft = "a claim is let go when the last snapshot of it that was not begun is deleted; Kubernetes keeps it for" +
		" ever"
	reasonSuccess = "a success ends the error of an earlier attempt; Kubernetes leaves it until the snapshot is " +
		"ready"
)

func snapshotReasons() []snapshotRow {
	return []snapshotRow{
		{reasonMismatch, mismatched},
		{reasonUnknown, unknownKey},
		{reasonClaim, claimOnly},
		{reasonLook, func(about subject, _ string) bool {
			return about.classGone() && strings.Contains(about.contentIn(about.Ours), " source=snapshot ")
		}},
		{reasonParameters, func(about subject, line string) bool {
			return about.classGone() && !strings.HasPrefix(line, "snapshot ") &&
				strings.Contains(about.contentIn(about.Ours), " source=volume ")
		}},
		{reasonClass, func(about subject, _ string) bool { return about.classGone() }},
		{reasonSecret, secretGone},
		{reasonShared, named},
		{reasonIntent, intended},
		{reasonUnseen, unseen},
		{reasonSuccess, errorEnded},
		{reasonSource, keptBefore},
		{reasonGoing, keptLonger},
		{reasonPending, toldEarly},
		{reasonOrphan, orphaned},
		{reasonTime, untimed},
		{reasonLeft, leftKept},
	}
}

// ofShot finds the snapshot in a line, ofContent a content that a user has created, and ofHandle the
// driver's snapshot of such a content.
func ofShot(line string) []string {
	return regexp.MustCompile(`(?:^(?:aside: )?snapshot |snapcontent-|snapshot-)(s[0-9]+)\b`).FindStringSubmatch(line)
}

func ofContent(line string) []string {
	return regexp.MustCompile(`^content (k[0-9]+) for `).FindStringSubmatch(line)
}

func ofHandle(line string) []string {
	return regexp.MustCompile(`(?:snapshot_id":"|^stored snapshot |of )(id-\S+-h[0-9]+)\b`).FindStringSubmatch(line)
}

// subjectsOf returns what a line is about.
func subjectsOf(d difference, line string) []subject {
	lines := slices.Concat(d.Ours, d.Theirs)
	if claim, ok := strings.CutPrefix(line, "claim "); ok {
		claim, _, _ = strings.Cut(claim, " ")
		var out []subject
		for _, l := range lines {
			if found := ofShot(l); found != nil && strings.Contains(l, " of claim "+claim+" ") {
				out = append(out, subjectOf(d, found[1]))
			}
		}
		if len(out) == 0 {
			out = []subject{{difference: d}}
		}
		return out
	}
	if found := ofShot(line); found != nil {
		return []subject{subjectOf(d, found[1])}
	}
	if found := ofContent(line); found != nil {
		return []subject{withContent(d, found[1])}
	}
	out := []subject{{difference: d}}
	if found := ofHandle(line); found != nil {
		for _, l := range lines {
			if of := ofContent(l); of != nil && strings.Contains(l, "=snapshot "+found[1]+" ") {
				out = append(out, withContent(d, of[1]))
			}
		}
	}
	return out
}

// subjectOf returns a snapshot with its content.
func subjectOf(d difference, shot string) subject {
	about := subject{d, shot, "snapcontent-" + shot}
	if content := differential.Field(about.shotIn(d.Ours), "of content "); content != "" {
		about.content = content
	}
	return about
}

// withContent returns a content that a user has created, with the snapshot that is bound to it.
func withContent(d difference, content string) subject {
	about := subject{d, "", content}
	for _, lines := range [][]string{d.Ours, d.Theirs} {
		if found := regexp.MustCompile(` uid of (s[0-9]+) `).FindStringSubmatch(about.contentIn(lines)); found != nil {
			about.shot = found[1]
		}
	}
	return about
}

func (about subject) shotIn(lines []string) string {
	return differential.LineOf(lines, "snapshot "+about.shot+" ")
}

func (about subject) contentIn(lines []string) string {
	return differential.LineOf(lines, "content "+about.content+" ")
}

func (about subject) asideIn(lines []string) string {
	return differential.LineOf(lines, differential.Aside+"content "+about.content+" ")
}

// mismatched says whether the class of a snapshot belongs to another driver than the claim's volume.
func mismatched(about subject, _ string) bool {
	shot := about.shotIn(about.Ours)
	class := differential.LineOf(about.Ours, "class "+differential.Field(shot, "class=")+" ")
	claim := differential.LineOf(about.Ours, "claim "+differential.Field(shot, "of claim ")+" ")
	v := differential.LineOf(about.Ours, "volume "+differential.Field(claim, "volume=")+" ")
	driver := differential.Field(v, "of ")
	return class != "" && driver != "" && driver != noDriver && driver != differential.Field(class, "of ") &&
		strings.Contains(shot, " bound=none ")
}

// unknownKey says whether the class of a snapshot has an unknown parameter, and only Kubernetes creates a content.
func unknownKey(about subject, _ string) bool {
	shot := about.shotIn(about.Ours)
	class := differential.LineOf(about.Ours, "class "+differential.Field(shot, "class=")+" ")
	return strings.Contains(class, "csi.storage.k8s.io/unknown:") && about.contentIn(about.Ours) == "" &&
		strings.Contains(shot, " bound=none ") && !strings.Contains(shot, " error=none ")
}

// untimed says whether Kubernetes has a time of 1970 where volplane has no time, or a different one.
func untimed(about subject, line string) bool {
	created := regexp.MustCompile(` created=\S+ `)
	same := func(ours, theirs string) bool {
		return strings.Contains(theirs, " created=0 ") &&
			created.ReplaceAllString(ours, " ") == created.ReplaceAllString(theirs, " ")
	}
	if strings.HasPrefix(line, "content ") {
		return same(about.contentIn(about.Ours), about.contentIn(about.Theirs))
	}
	return same(about.shotIn(about.Ours), about.shotIn(about.Theirs))
}

// keptBefore says whether only volplane keeps a snapshot whose content belongs to another.
func keptBefore(about subject, _ string) bool {
	ours, theirs := about.shotIn(about.OnlyOurs), about.shotIn(about.OnlyTheirs)
	return strings.Contains(ours, " of content ") && strings.Contains(ours, " bound=none ") &&
		strings.Replace(ours, volume.FinalizerSnapshotAsSource, "", 1) == theirs
}

// claimOnly says whether a claim differs only in being kept by Kubernetes for a snapshot without a content.
func claimOnly(about subject, line string) bool {
	claim, ok := strings.CutPrefix(line, "claim ")
	if !ok || about.shot == "" || about.contentIn(about.Theirs) != "" {
		return false
	}
	claim, _, _ = strings.Cut(claim, " ")
	ours, theirs := differential.LineOf(about.Ours, "claim "+claim+" "), differential.LineOf(about.Theirs,
		"claim "+claim+" ")
	return onlyKept(theirs, ours)
}

// leftKept says whether only Kubernetes keeps a claim although no snapshot of it is being created.
func leftKept(about subject, line string) bool {
	claim, ok := strings.CutPrefix(line, "claim ")
	if !ok {
		return false
	}
	claim, _, _ = strings.Cut(claim, " ")
	return !differential.Has(about.Theirs, "snapshot ", " of claim "+claim+" ", " ready=false ") &&
		onlyKept(differential.LineOf(about.Theirs, "claim "+claim+" "), differential.LineOf(about.Ours, "claim "+claim+" "))
}

// keptLonger says whether only volplane keeps a claim for a snapshot that is being deleted.
func keptLonger(about subject, line string) bool {
	claim, ok := strings.CutPrefix(line, "claim ")
	if !ok || !strings.HasSuffix(about.shotIn(about.Ours), " going=true") || about.contentIn(about.Ours) == "" {
		return false
	}
	claim, _, _ = strings.Cut(claim, " ")
	return onlyKept(differential.LineOf(about.Ours, "claim "+claim+" "),
		differential.LineOf(about.Theirs, "claim "+claim+" "))
}

// overwritten says whether only volplane marks a content as being deleted whose snapshot the driver has not created.
func overwritten(about subject) bool {
	ours, theirs := about.contentIn(about.Ours), about.contentIn(about.Theirs)
	return ours != theirs && strings.Contains(ours, " handle=none ") && unmarked(ours) == theirs &&
		differential.Has(about.Theirs, "answered CreateSnapshot of snapshot-"+about.shot+" with ")
}

// unmarked returns the line of a content as if it had not been marked as being deleted.
func unmarked(content string) string {
	return regexp.MustCompile(` ?`+regexp.QuoteMeta(volume.AnnSnapshotDeleting)+`=yes`).ReplaceAllString(content, "")
}

// toldEarly says whether only Kubernetes marks a content as being deleted while a claim waits for its snapshot.
func toldEarly(about subject, _ string) bool {
	ours, theirs := about.contentIn(about.Ours), about.contentIn(about.Theirs)
	return ours != "" && ours != theirs && ours == unmarked(theirs) &&
		differential.Has(about.Ours, "claim ", " Pending ", " source=VolumeSnapshot:"+about.shot+".")
}

// orphaned says whether only Kubernetes keeps a content that is deleted, and whose snapshot does not exist.
func orphaned(about subject, _ string) bool {
	theirs := about.contentIn(about.Theirs)
	return strings.HasSuffix(theirs, " going=true") && !strings.Contains(theirs, volume.AnnSnapshotDeleting) &&
		about.contentIn(about.Ours) == "" && (about.shot == "" || about.shotIn(about.Theirs) == "")
}

// onlyKept says whether a claim equals another one, or is gone, apart from being kept for a snapshot.
func onlyKept(kept, other string) bool {
	unkept := strings.Replace(kept, " "+volume.FinalizerSnapshotSource, "", 1)
	unkept = strings.Replace(unkept, volume.FinalizerSnapshotSource, "", 1)
	return unkept != kept && (unkept == other || other == "" && strings.HasSuffix(unkept, " finalizers=[] going=true"))
}

// classGone says whether a snapshot, or its content, has a class that does not exist any more, and a content.
func (about subject) classGone() bool {
	content := about.contentIn(about.Ours)
	if content == "" {
		content = about.contentIn(about.Theirs)
	}
	gone := func(line string) bool {
		class := differential.Field(line, "class=")
		return class != "" && class != "none" && differential.LineOf(about.Ours, "class "+class+" ") == ""
	}
	return content != "" && (gone(content) || gone(about.shotIn(about.Ours)) || gone(about.shotIn(about.Theirs)))
}

// secretGone says whether only Kubernetes waits for a Secret to delete a snapshot.
func secretGone(about subject, _ string) bool {
	content := about.contentIn(about.Theirs)
	found := regexp.MustCompile(`deletion-secret-name=(\S+) `).FindStringSubmatch(content)
	return found != nil && strings.HasSuffix(content, " going=true") && !slices.Contains(about.Ours, "secret "+found[1])
}

// named says whether only Kubernetes has deleted a snapshot that another content names.
func named(about subject, line string) bool {
	found := ofHandle(line)
	if found == nil {
		return false
	}
	still := slices.ContainsFunc(about.Ours, func(l string) bool {
		return strings.HasPrefix(l, "content ") && strings.Contains(l, "=snapshot "+found[1]+" ")
	})
	return still && differential.Has(about.OnlyTheirs, "asked DeleteSnapshot ", found[1])
}

// intended says whether only volplane waits for the driver's answer before a content is removed.
func intended(about subject, _ string) bool {
	return strings.Contains(about.asideIn(about.Ours), " intended=true ") &&
		strings.HasSuffix(about.contentIn(about.Ours), " going=true") &&
		about.contentIn(about.Theirs) == "" && differential.Has(about.Theirs,
		"answered CreateSnapshot of snapshot-"+about.shot+" with ")
}

// unseen says whether only volplane deletes a snapshot about which the driver has reported nothing.
func unseen(about subject, line string) bool {
	found := ofHandle(line)
	return found != nil && differential.Has(about.OnlyOurs, "asked DeleteSnapshot ", found[1]) &&
		slices.Contains(about.Theirs, "stored snapshot "+found[1]) &&
		differential.Has(about.Theirs, "answered ListSnapshots of "+found[1]+" with ")
}

// errorEnded says whether a line differs only in an error that Kubernetes leaves.
func errorEnded(about subject, _ string) bool {
	failed := regexp.MustCompile(` error=(\S+|its own) (annotations|finalizers)`)
	same := func(ours, theirs string) bool {
		return ours == failed.ReplaceAllString(theirs, " error=none $2") && strings.Contains(ours, " ready=false ")
	}
	ours, theirs := about.contentIn(about.Ours), about.contentIn(about.Theirs)
	return !strings.Contains(ours, " handle=none ") && same(ours, theirs)
}
