package kube

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/cluster"
	"volplane.dev/volplane/test/internal/upstream"
)

// monitorRights are those of upstream's deploy/kubernetes/external-health-monitor-controller/rbac.yaml in version
// 0.18.0, which the Go proxy does not have: claims are only read.
const monitorRights = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: csi-external-health-monitor-controller, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: monitor}
rules:
- {apiGroups: [""], resources: [persistentvolumes, persistentvolumeclaims, nodes, pods], verbs: [get, list, watch]}
- {apiGroups: [""], resources: [events], verbs: [get, list, watch, create, patch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: monitor}
subjects: [{kind: ServiceAccount, name: csi-external-health-monitor-controller, namespace: default}]
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: monitor}
`

// TestRightsOfUpstreamsHealthMonitor: in the place of csi-external-health-monitor-controller, with the rights of
// upstream's manifest, volplane reports a volume's health by an event at its claim, and the only requests that are
// refused are to list Leases in order to find other controllers, and to write the health to the claim.
func TestRightsOfUpstreamsHealthMonitor(t *testing.T) {
	t.Parallel()
	c, log := cluster.AuditedCluster(t)
	ctx, cancel := context.WithTimeout(t.Context(), upstream.Limit)
	defer cancel()
	config := csitest.Full()
	config.Controller.ListVolumeHealth = true
	driver := csitest.Start(t, config)
	driver.OnCall("ControllerListVolumeHealth", func(int, any) csitest.Action {
		slow := &csipb.VolumeHealth_VolumeHealthEntry{Status: csipb.VolumeHealthErrorType_DEGRADED, Reason: "Slow"}
		return csitest.Action{Answer: &csipb.ControllerListVolumeHealthResponse{Entries: []*csipb.VolumeHealth{{
			VolumeId: "h", HealthStatuses: []*csipb.VolumeHealth_VolumeHealthEntry{slow},
		}}}}
	})
	const account = "csi-external-health-monitor-controller"
	i := &cluster.Installation{Cluster: c, T: t, Ctx: ctx, Base: "monitor", Space: "default"}
	i.Kubectl(ctx, t, monitorRights, "apply", "-f", "-")
	boundVolume(i, driver.Name())
	upstream.Start(t, "volplane", account, "--v=2", "--kubeconfig="+i.Identity(account), "--monitor-interval=1s",
		"--csi-address=unix://"+driver.Socket)
	upstream.Eventually(ctx, t, func() string {
		events, err := i.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Name == "c" && e.Reason == "VolumeConditionAbnormal" && strings.Contains(e.Message, "Slow") {
				return ""
			}
		}
		return fmt.Sprintf("none of %d events tells it", len(events.Items))
	})
	for _, r := range i.Audited(log, account) {
		if r.ResponseStatus.Code == http.StatusForbidden && r.ObjectRef.Subresource != "status" &&
			r.ObjectRef.Resource != "leases" {
			t.Errorf("it may not %s %s: %s", r.Verb, r.RequestURI, r.ResponseStatus.Message)
		}
	}
}

// boundVolume creates a claim that has a volume of the driver.
func boundVolume(i *cluster.Installation, driver string) {
	i.T.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claims := i.Client.CoreV1().PersistentVolumeClaims("default")
	claim, err := claims.Create(i.Ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: corev1.PersistentVolumeClaimSpec{
			VolumeName: "v", AccessModes: modes, Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{})
	i.Must(err)
	_, err = i.Client.CoreV1().PersistentVolumes().Create(i.Ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes,
			ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: "c", UID: claim.UID},
			PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: "h"},
			},
		},
	}, metav1.CreateOptions{})
	i.Must(err)
	claim.Status.Phase = corev1.ClaimBound
	_, err = claims.UpdateStatus(i.Ctx, claim, metav1.UpdateOptions{})
	i.Must(err)
}
