package resize

import (
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/internal/testkit/golden"
	"volplane.dev/volplane/internal/volume"
)

// TestAfterNode: what follows each answer of a node's driver that is to grow a volume.
func TestAfterNode(t *testing.T) {
	got := csitest.EveryAnswer(func(answer volume.Answer) string {
		r := AfterNode(Answer{Answer: answer}, 10<<30)
		switch {
		case r.Refused && r.State == nil:
			return "not asked again before the next mount"
		case r.State == nil:
			return "asked again"
		}
		return fmt.Sprintf("refused %v, the claim says %q", r.Refused, *r.State)
	})
	golden.Equal(t, "testdata/node.txt", got+"\n")
}

// TestNodeShort: a claim does not say that its volume has grown if the driver says a smaller size than was requested;
// a driver need not say one.
func TestNodeShort(t *testing.T) {
	for bytes, want := range map[int64]string{
		0: "", 10 << 30: "", 11 << 30: "",
		10<<30 - 1: "it reports that the volume now has 10737418239 bytes, 10737418240 were requested",
	} {
		got := AfterNode(Answer{Answer: volume.Answer{Outcome: volume.Done}, Bytes: bytes}, 10<<30)
		if got.Short != want || got.Refused || (got.State == nil) != (want != "") {
			t.Errorf("%d bytes: %+v, want %q", bytes, got, want)
		}
	}
}

// TestNodeStatus: the end of a growth takes with it what was said of it, and nothing else; a growth that cannot be
// leaves the rest as it is.
func TestNodeStatus(t *testing.T) {
	c := claim("2Gi", "1Gi")
	for _, kind := range []corev1.PersistentVolumeClaimConditionType{
		corev1.PersistentVolumeClaimResizing, "Strange", corev1.PersistentVolumeClaimFileSystemResizePending,
		corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError,
	} {
		c.Status.Conditions = append(c.Status.Conditions, corev1.PersistentVolumeClaimCondition{
			Type: kind, Status: corev1.ConditionTrue,
		})
	}
	for state, want := range map[corev1.ClaimResourceStatus]string{
		corev1.PersistentVolumeClaimNodeResizeInfeasible: `{"allocatedResourceStatuses":{"storage":"NodeResizeInfeasible"}}`,
		"": `{"allocatedResourceStatuses":{"storage":null},"capacity":{"storage":"3Gi"},"conditions":[{"type":"Strange",` +
			`"status":"True","lastProbeTime":null,"lastTransitionTime":null}]}`,
	} {
		got, err := json.Marshal(NodeStatus(c, state, resource.MustParse("3Gi")))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != want {
			t.Errorf("state %q: %s, want %s", state, got, want)
		}
	}
	if len(c.Status.Conditions) != 5 {
		t.Error("the argument has changed")
	}
}
