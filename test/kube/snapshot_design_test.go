package kube

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
)

// TestSnapshotDiffersByDesign plays a sequence for each reason for which snapshots may differ, and wants both
// sides to differ for it: a reason without one would be an excuse.
func TestSnapshotDiffersByDesign(t *testing.T) {
	t.Parallel()
	d := snapshotDifferential(t, false)
	reasons := make([]string, 0, len(snapshotReasons()))
	for _, r := range snapshotReasons() {
		reasons = append(reasons, r.reason)
	}
	d.show(t, designs(), reasons)
	d.seesAside(t)
}

// designLimit is how long all designs may take.
const designLimit = 10 * time.Minute

// design is what shows one reason.
type design struct {
	reason string
	ops    []op
}

// show plays the designs, and wants each of the reasons to be shown by one.
func (d *differential) show(t *testing.T, designs []design, reasons []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), designLimit)
	defer cancel()
	var all []sequence
	for i, one := range designs {
		all = append(all, sequence{seed: uint64(i), ops: one.ops})
	}
	found, err := d.play(ctx, all)
	if err != nil {
		t.Fatal(err)
	}
	for i, difference := range found {
		if difference != "" {
			t.Errorf("%s\n%s%s", designs[i].reason, all[i], difference)
		}
	}
	for _, reason := range reasons {
		shown := false
		for counted := range d.counted {
			shown = shown || strings.Contains(counted, reason)
		}
		if !shown {
			t.Errorf("nothing shows that %s", reason)
		}
	}
	t.Logf("differences that are allowed:%s", d.table())
}

func plainClass(parameters map[string]any) op {
	return newSnapshotClass(snapshotClass{name: "a", driver: driverName, policy: "Delete", parameters: parameters})
}

func designs() []design {
	class, claim := plainClass(map[string]any{"copies": "1"}), newBoundClaim("c0", driverName)
	shot := newShot("s0", "c0", "a")
	always := func(method string, code codes.Code) op { return failing(method, fault{code: code}) }
	given := givenContent{name: "k0", snapshot: "s0", handle: "h0", policy: "Delete", driver: driverName}
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
		{reasonMismatch, []op{
			newSnapshotClass(snapshotClass{name: "a", driver: ownDriver, policy: "Delete"}), claim, shot,
		}},
		{reasonUnknown, []op{plainClass(map[string]any{"csi.storage.k8s.io/unknown": "x"}), claim, shot}},
		{reasonClaim, []op{class, newBoundClaim("c0", ""), shot}},
		{reasonLook, []op{changed(func(c *givenContent) { c.class = "missing" })}},
		{reasonParameters, []op{
			class, claim, always("CreateSnapshot", codes.Unavailable), shot, deleteClass("a"), heal(mark),
		}},
		{reasonClass, []op{class, claim, shot, deleteClass("a"), heal(mark)}},
		{reasonSecret, []op{
			plainClass(secret), claim, (&dice{Rand: newRand(0)}).newSecret("s0"), shot, deleteSecret("s0"), deleteSnapshot("s0"),
		}},
		{reasonShared, []op{
			newGivenContent(given), changed(func(c *givenContent) { c.name, c.snapshot = "k1", "s1" }),
			newShotOf("s0", "k0", ""), deleteSnapshot("s0"),
		}},
		{reasonIntent, []op{class, claim, always("CreateSnapshot", codes.Internal), shot, deleteSnapshot("s0")}},
		{reasonUnseen, []op{
			always("ListSnapshots", codes.Internal), newGivenContent(given), newShotOf("s0", "k0", ""), deleteSnapshot("s0"),
		}},
		{reasonSuccess, []op{
			class, claim, newMood(mood{unready: true}, mark),
			failing("CreateSnapshot", fault{code: codes.Internal, times: 1}), shot,
		}},
		{reasonTime, []op{class, claim, newMood(mood{untimed: true}, mark), shot}},
		{reasonSource, []op{
			changed(func(c *givenContent) { c.uid = "11111111-2222-3333-4444-555555555555" }), newShotOf("s1", "k0", ""),
		}},
		{reasonPending, []op{class, claim, shot, restore("r0", "s0"), deleteSnapshot("s0")}},
		{reasonOrphan, []op{
			changed(func(c *givenContent) { c.uid, c.policy = "11111111-2222-3333-4444-555555555555", "Retain" }),
			deleteContent("k0"),
		}},
		{reasonLeft, []op{
			class, claim, newMood(mood{unready: true}, mark), newShot("s0", "c0", ""), newShot("s1", "c0", "a"),
			deleteSnapshot("s1"), deleteSnapshot("s0"),
		}},
		{reasonGoing, []op{class, claim, always("CreateSnapshot", codes.Unavailable), shot, deleteSnapshot("s0")}},
	}
}

// seesAside wants the lines that are not compared to say what always differs.
func (d *differential) seesAside(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), designLimit)
	defer cancel()
	spaces, ended, s := []string{"g0-s0"}, []bool{false}, sequence{ops: []op{
		plainClass(map[string]any{"copies": "1"}), newBoundClaim("c0", driverName), newBoundClaim("c1", ""),
		newShot("s0", "c0", "a"), newShot("s1", "c1", "a"), failing("CreateSnapshot", fault{code: codes.Internal}),
		newShot("s2", "c0", "a"), failing("DeleteSnapshot", fault{code: codes.Internal}), deleteSnapshot("s0"),
	}}
	var states []state
	for step := -1; step < len(s.ops); step++ {
		err := d.act(ctx, []sequence{s}, spaces, ended, step)
		if err == nil {
			states, err = d.settle(ctx, spaces, ended)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
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
			if !slices.Contains(states[side]["g0-s0"], aside+l) {
				t.Errorf("%s does not say %s:\n%s", d.sides[side].name, l, strings.Join(states[side]["g0-s0"], "\n"))
			}
		}
	}
	if err := d.cleanUp(ctx); err != nil {
		t.Fatal(err)
	}
}
