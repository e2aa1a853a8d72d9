package snapshots

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"volplane.dev/volplane/test/internal/differential"
)

// TestSnapshotDiffersByDesign plays a sequence for each reason why snapshots may differ, and requires that both sides
// differ because of it: a reason without one would be an excuse.
func TestSnapshotDiffersByDesign(t *testing.T) {
	t.Parallel()
	d := snapshotDifferential(t, false)
	reasons := make([]string, 0, len(snapshotReasons()))
	for _, r := range snapshotReasons() {
		reasons = append(reasons, r.reason)
	}
	d.Show(t, designs(), reasons)
	seesAside(t, d)
}

func plainClass(parameters map[string]any) op {
	return newSnapshotClass(differential.SnapshotClass{
		Name: "a", Driver: differential.DriverName, Policy: "Delete",
		Parameters: parameters,
	})
}

func designs() []design {
	class, claim := plainClass(map[string]any{"copies": "1"}), newBoundClaim("c0", differential.DriverName)
	shot := newShot("s0", "c0", "a")
	always := func(method string, code codes.Code) op { return differential.Failing(method, fault{Code: code}) }
	given := givenContent{name: "k0", snapshot: "s0", handle: "h0", policy: "Delete", driver: differential.DriverName}
	changed := func(change func(*givenContent)) op {
		c := given
		change(&c)
		return newGivenContent(c)
	}
	secret := map[string]any{
		"csi.storage.k8s.io/snapshotter-secret-name": "s0", "csi.storage.k8s.io/snapshotter-secret-namespace": "space",
	}
	const mark = 1
	return []design{
		{Reason: reasonMismatch, Ops: []op{
			newSnapshotClass(differential.SnapshotClass{Name: "a", Driver: ownDriver, Policy: "Delete"}), claim, shot,
		}},
		{Reason: reasonUnknown, Ops: []op{plainClass(map[string]any{"csi.storage.k8s.io/unknown": "x"}), claim, shot}},
		{Reason: reasonClaim, Ops: []op{class, newBoundClaim("c0", ""), shot}},
		{Reason: reasonLook, Ops: []op{changed(func(c *givenContent) { c.class = "missing" })}},
		{Reason: reasonParameters, Ops: []op{
			class, claim, always("CreateSnapshot", codes.Unavailable), shot, deleteClass("a"), differential.Heal(mark),
		}},
		{Reason: reasonClass, Ops: []op{class, claim, shot, deleteClass("a"), differential.Heal(mark)}},
		{Reason: reasonSecret, Ops: []op{
			plainClass(secret), claim, differential.NewDice(0).NewSecret("s0"), shot, differential.DeleteSecret("s0"),
			deleteSnapshot("s0"),
		}},
		{Reason: reasonShared, Ops: []op{
			newGivenContent(given), changed(func(c *givenContent) { c.name, c.snapshot = "k1", "s1" }),
			newShotOf("s0", "k0", ""), deleteSnapshot("s0"),
		}},
		{Reason: reasonIntent, Ops: []op{class, claim, always("CreateSnapshot", codes.Internal), shot, deleteSnapshot("s0")}},
		{Reason: reasonUnseen, Ops: []op{
			always("ListSnapshots", codes.Internal), newGivenContent(given), newShotOf("s0", "k0", ""), deleteSnapshot("s0"),
		}},
		{Reason: reasonSuccess, Ops: []op{
			class, claim, newMood(differential.Mood{Unready: true}, mark),
			differential.Failing("CreateSnapshot", fault{Code: codes.Internal, Times: 1}), shot,
		}},
		{Reason: reasonTime, Ops: []op{class, claim, newMood(differential.Mood{Untimed: true}, mark), shot}},
		{Reason: reasonSource, Ops: []op{
			changed(func(c *givenContent) { c.uid = "11111111-2222-3333-4444-555555555555" }), newShotOf("s1", "k0", ""),
		}},
		{Reason: reasonPending, Ops: []op{class, claim, shot, restore("r0", "s0"), deleteSnapshot("s0")}},
		{Reason: reasonOrphan, Ops: []op{
			changed(func(c *givenContent) { c.uid, c.policy = "11111111-2222-3333-4444-555555555555", "Retain" }),
			deleteContent("k0"),
		}},
		{Reason: reasonLeft, Ops: []op{
			class, claim, newMood(differential.Mood{Unready: true}, mark), newShot("s0", "c0", ""), newShot("s1", "c0", "a"),
			deleteSnapshot("s1"), deleteSnapshot("s0"),
		}},
		{Reason: reasonGoing, Ops: []op{
			class, claim, always("CreateSnapshot", codes.Unavailable), shot, deleteSnapshot("s0"),
		}},
	}
}

// seesAside requires that the lines which are not compared show what always differs.
func seesAside(t *testing.T, d *differential.Differential) {
	t.Helper()
	states := d.StatesAfter(t, []op{
		plainClass(map[string]any{"copies": "1"}), newBoundClaim("c0", differential.DriverName), newBoundClaim("c1", ""),
		newShot("s0", "c0", "a"), newShot("s1", "c1", "a"), differential.Failing("CreateSnapshot",
			fault{Code: codes.Internal}),
		newShot("s2", "c0", "a"), differential.Failing("DeleteSnapshot", fault{Code: codes.Internal}), deleteSnapshot("s0"),
	})
	const kept, early = "snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection",
		"snapshot.storage.kubernetes.io/volumesnapshot-bound-protection"
	for side, lines := range map[int][]string{
		0: {
			`content snapcontent-s0 parameters={"copies":"1"} label="volplane" intended=false error=Internal`,
			`content snapcontent-s2 parameters={"copies":"1"} label="volplane" intended=true error=Internal`,
			"snapshot s1 error=its own finalizers=[" + kept + " " + early + "]",
		},
		1: {
			`content snapcontent-s0 parameters= label="" intended=false error=none`,
			"snapshot s1 error=its own finalizers=[" + kept + "]",
		},
	} {
		for _, l := range lines {
			if !slices.Contains(states[side], differential.Aside+l) {
				t.Errorf("%s does not say %s:\n%s", d.Sides[side].Name, l, strings.Join(states[side], "\n"))
			}
		}
	}
}
