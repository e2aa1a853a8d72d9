package app

import (
	"testing"

	"volplane.dev/volplane/internal/controller/groupsnapshotter"
	"volplane.dev/volplane/internal/controller/snapshotter"
)

// TestGroupsOfSnapshots: who switches groups of snapshots off has the snapshot-controller without them.
func TestGroupsOfSnapshots(t *testing.T) {
	for _, without := range []bool{false, true} {
		o := ControlPlaneOptions{Roles: []string{snapshotter.BindingDeclaration().Name}}
		o.SnapshotController.WithoutGroups = without
		if !o.runs(snapshotter.BindingDeclaration().Name) {
			t.Errorf("without groups %v: no snapshot-controller", without)
		}
		if got := o.runs(groupsnapshotter.BindingDeclaration().Name); got == without {
			t.Errorf("without groups %v: the controller of groups runs: %v", without, got)
		}
	}
}

// TestAttributesOfClaims: the choice that claims' VolumeAttributesClasses do not count comes to the decision.
func TestAttributesOfClaims(t *testing.T) {
	var s Sidecars
	if s.choices().WithoutAttributes {
		t.Error("they do not count although nobody said so")
	}
	if s.Provisioner.WithoutAttributes = true; !s.choices().WithoutAttributes {
		t.Error("they count")
	}
}
