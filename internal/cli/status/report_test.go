package status

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/decide/diskspace"
	"volplane.dev/volplane/internal/explain/state"
	"volplane.dev/volplane/internal/explain/survey"
	"volplane.dev/volplane/internal/volume"
)

// TestStatusReport: an empty control plane is healthy; a claim of a class that does not exist, a certificate near its
// end, an old backup and an old control plane without one are problems, and what is recent is not.
func TestStatusReport(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	ago := func(d time.Duration) *time.Time { at := now.Add(-d); return &at }
	year := 365 * 24 * time.Hour
	valid := func(left time.Duration) []validity {
		return []validity{{"server", now.Add(left - year), now.Add(left)}}
	}
	missing, claim := "missing", &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}
	claim.Spec.StorageClassName, claim.Status.Phase = &missing, corev1.ClaimPending
	aged := func(d time.Duration) state.Objects {
		o := state.Objects{Now: now}
		o.CSINodes = []*storagev1.CSINode{{Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{Name: "d"}}}}}
		for _, age := range []time.Duration{0, d} {
			node := &corev1.Node{}
			node.CreationTimestamp = metav1.NewTime(now.Add(-age))
			o.Nodes = append(o.Nodes, node)
		}
		return o
	}
	waiting := state.Objects{Now: now}
	waiting.Claims = []*corev1.PersistentVolumeClaim{claim}
	for name, c := range map[string]struct {
		objects state.Objects
		room    *diskspace.Report
		certs   []validity
		want    string
	}{
		"nothing":          {state.Objects{Now: now}, nil, nil, "true []"},
		"all is young":     {state.Objects{Now: now}, &diskspace.Report{Backup: ago(time.Hour)}, valid(year / 2), "true []"},
		"no backup yet":    {aged(oldBackup / 2), &diskspace.Report{}, nil, "true []"},
		"no backup ever":   {aged(2 * oldBackup), &diskspace.Report{}, nil, "false [BackupOld]"},
		"no backup wanted": {aged(2 * oldBackup), &diskspace.Report{NoBackups: true}, nil, "true []"},
		"no nodes yet":     {state.Objects{Now: now}, &diskspace.Report{}, nil, "true []"},
		"an old backup": {
			state.Objects{Now: now}, &diskspace.Report{Backup: ago(4 * oldBackup)}, nil, "false [BackupOld]",
		},
		"a certificate without a begin": {
			state.Objects{Now: now}, nil, []validity{{"client", time.Unix(0, 0), now.Add(2 * expiresSoon)}}, "true []",
		},
		"the certificate ends": {state.Objects{Now: now}, nil, valid(time.Hour), "false [CertificateExpires]"},
		"a class that is not there": {
			waiting, nil, nil, "false [ProvisioningFailed]",
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := reportOf(survey.Summarize(c.objects), c.room, c.certs)
			reasons := []string{}
			for _, p := range r.Problems {
				reasons = append(reasons, p.Reason)
			}
			if got := fmt.Sprint(r.Healthy, " ", reasons); got != c.want || r.Claims["Pending"] != len(c.objects.Claims) {
				t.Errorf("%s, want %s; %v", got, c.want, r.Claims)
			}
		})
	}
}

// TestActorOfAProblem: the output for programs has who acts next as a text and as a kind and a name.
func TestActorOfAProblem(t *testing.T) {
	t.Parallel()
	out, err := json.Marshal(problemOf("pvc/data", "r", "m", volume.User()))
	if err != nil || strings.Count(string(out), `"actor"`) != 1 ||
		!strings.Contains(string(out), `"next":"user","actor":{"kind":"user"}`) {
		t.Errorf("%s, %v", out, err)
	}
}
