package exchange

import (
	"context"
	"fmt"
	"slices"
	"strings"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/test/internal/upstream"
)

// slot is a claim with the wishes of users, or empty.
type slot struct {
	number int
	// name is the claim's name, and that of its Pod; empty without a claim.
	name      string
	gibibytes int64
	pod       bool
	snapshots []string
}

// act makes users do one thing about a slot, and returns its description.
func (e *exchange) act(ctx context.Context, s *slot) string {
	what := e.rand.IntN(8)
	if s.name == "" {
		e.named++
		s.name, s.gibibytes = fmt.Sprintf("c%d-%d", s.number, e.named), 1
		_, err := e.Client.CoreV1().PersistentVolumeClaims("default").Create(ctx, upstream.ClaimOf(s.name, "fast"),
			metav1.CreateOptions{})
		e.Must(err)
		text := " create " + s.name
		if what < 4 {
			text += e.use(ctx, s)
		}
		return text
	}
	claim, err := e.Client.CoreV1().PersistentVolumeClaims("default").Get(ctx, s.name, metav1.GetOptions{})
	e.Must(err)
	bound := claim.Status.Phase == corev1.ClaimBound
	switch {
	case what < 2 && (bound || e.silence.askedByOurs("pvc-"+string(claim.UID))):
		// Upstream's provisioner loses a volume that it creates for a claim that is deleted while no provisioner runs.
		return e.drop(ctx, s)
	case what < 4:
		return e.use(ctx, s)
	case what == 4 && bound:
		return e.grow(ctx, s)
	case what < 7 && bound:
		return e.shoot(ctx, s)
	}
	return ""
}

// use creates a Pod with the claim, or deletes it.
func (e *exchange) use(ctx context.Context, s *slot) string {
	pods := e.Client.CoreV1().Pods("default")
	s.pod = !s.pod
	if !s.pod {
		e.Must(pods.Delete(ctx, s.name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		return " unuse " + s.name
	}
	_, err := pods.Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: corev1.PodSpec{
		NodeName: "n1", AutomountServiceAccountToken: ptr.To(false),
		Containers: []corev1.Container{{Name: "c", Image: "none"}},
		Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: s.name},
		}}},
	}}, metav1.CreateOptions{})
	e.Must(err)
	return " use " + s.name
}

// grow requests one gibibyte more.
func (e *exchange) grow(ctx context.Context, s *slot) string {
	s.gibibytes++
	claims := e.Client.CoreV1().PersistentVolumeClaims("default")
	e.Must(upstream.Again(func() error {
		c, err := claims.Get(ctx, s.name, metav1.GetOptions{})
		if err == nil {
			c.Spec.Resources.Requests[corev1.ResourceStorage] = *resource.NewQuantity(s.gibibytes<<30, resource.BinarySI)
			_, err = claims.Update(ctx, c, metav1.UpdateOptions{})
		}
		return err
	}))
	return fmt.Sprint(" grow ", s.name)
}

// shoot takes a snapshot, or deletes the existing one.
func (e *exchange) shoot(ctx context.Context, s *slot) string {
	if len(s.snapshots) > 0 {
		return e.dropSnapshots(ctx, s)
	}
	e.named++
	name := fmt.Sprintf("s%d-%d", s.number, e.named)
	s.snapshots = append(s.snapshots, name)
	e.Kubectl(ctx, e.T, fmt.Sprintf(`{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
		"metadata": {"name": %q, "namespace": "default"},
		"spec": {"volumeSnapshotClassName": "shots", "source": {"persistentVolumeClaimName": %q}}}`, name, s.name),
		"create", "-f", "-")
	return " snapshot " + s.name
}

func (e *exchange) dropSnapshots(ctx context.Context, s *slot) string {
	text := ""
	for _, name := range s.snapshots {
		e.Kubectl(ctx, e.T, "", "delete", "volumesnapshot", name, "--namespace=default", "--wait=false")
		text += " delete " + name
	}
	s.snapshots = nil
	return text
}

// drop deletes the claim with what uses it.
func (e *exchange) drop(ctx context.Context, s *slot) string {
	text := e.dropSnapshots(ctx, s)
	if s.pod {
		text += e.use(ctx, s)
	}
	claims := e.Client.CoreV1().PersistentVolumeClaims("default")
	claim, err := claims.Get(ctx, s.name, metav1.GetOptions{})
	e.Must(err)
	e.dropped["pvc-"+string(claim.UID)] = len(e.silence.all())
	e.Must(claims.Delete(ctx, s.name, metav1.DeleteOptions{}))
	text += " delete " + s.name
	s.name = ""
	return text
}

func (e *exchange) deleteAll() {
	e.T.Helper()
	for _, s := range e.slots {
		if s.name != "" {
			e.drop(e.Ctx, s)
		}
	}
}

// rest waits until everything is as users want it, in the API and in the driver, and nothing else is left.
func (e *exchange) rest() {
	e.T.Helper()
	ctx, cancel := context.WithTimeout(e.Ctx, exchangeLimit)
	defer cancel()
	upstream.Eventually(ctx, e.T, func() string {
		lines, err := e.inAPI(ctx)
		if err != nil {
			return err.Error()
		}
		wanted, got := strings.Join(e.wanted(), "\n"), strings.Join(lines, "\n")
		if wanted != got {
			return "wanted\n" + wanted + "\nin the API\n" + got
		}
		if has := strings.Join(e.inDriver(ctx), "\n"); has != wanted {
			return "wanted\n" + wanted + "\nin the driver\n" + has
		}
		return ""
	})
	e.note()
}

// line describes a claim with its volume, attachments and snapshots.
func line(claim string, bytes int64, attached, snapshots int) string {
	return fmt.Sprintf("%s %d attached %d snapshots %d", claim, bytes>>30, attached, snapshots)
}

func (e *exchange) wanted() []string {
	var out []string
	for _, s := range e.slots {
		if s.name != "" {
			out = append(out, line(s.name, s.gibibytes<<30, map[bool]int{true: 1}[s.pod], len(s.snapshots)))
		}
	}
	return out
}

// inAPI describes the volumes of the API. An object without a volume, or one that is not ready, is an error.
func (e *exchange) inAPI(ctx context.Context) ([]string, error) {
	var out []string
	volumes, err := e.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	attached, err := e.attached(ctx)
	if err != nil {
		return nil, err
	}
	snapshots, err := e.snapshots(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := e.Client.CoreV1().PersistentVolumeClaims("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(claims.Items) != len(volumes.Items) {
		return nil, fmt.Errorf("%d claims have %d volumes: %w", len(claims.Items), len(volumes.Items), err)
	}
	for _, v := range volumes.Items {
		if v.Status.Phase != corev1.VolumeBound || v.DeletionTimestamp != nil {
			return nil, fmt.Errorf("volume %s of %s is %s", v.Name, v.Spec.ClaimRef.Name, v.Status.Phase)
		}
		name := v.Spec.ClaimRef.Name
		out = append(out, line(name, v.Spec.Capacity.Storage().Value(), attached[v.Name], snapshots[name]))
	}
	slices.Sort(out)
	return out, nil
}

// attached counts the attachments of each volume. All must be attached, and stay so.
func (e *exchange) attached(ctx context.Context) (map[string]int, error) {
	attachments, err := e.Client.StorageV1().VolumeAttachments().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	out := map[string]int{}
	for _, a := range attachments.Items {
		if !a.Status.Attached || a.DeletionTimestamp != nil || a.Status.DetachError != nil {
			return nil, fmt.Errorf("attachment %+v", a)
		}
		out[*a.Spec.Source.PersistentVolumeName]++
	}
	return out, nil
}

// snapshots counts the snapshots of each claim. All must be ready, and each must have a content.
func (e *exchange) snapshots(ctx context.Context) (map[string]int, error) {
	contents, err := e.dynamic.Resource(upstream.SnapshotContents()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all, err := e.dynamic.Resource(upstream.Snapshots()).Namespace("default").List(ctx, metav1.ListOptions{})
	if err != nil || len(all.Items) != len(contents.Items) {
		return nil, fmt.Errorf("%d snapshots have %d contents: %w", len(all.Items), len(contents.Items), err)
	}
	out := map[string]int{}
	for _, o := range all.Items {
		var s upstream.SnapshotObject
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &s); err != nil {
			return nil, err
		}
		if s.Status == nil || !ptr.Deref(s.Status.ReadyToUse, false) || s.DeletionTimestamp != nil {
			return nil, fmt.Errorf("snapshot %s is not ready: %+v", s.Name, s.Status)
		}
		out[*s.Spec.Source.PersistentVolumeClaimName]++
	}
	return out, nil
}

// inDriver describes the driver's volumes by their claims.
func (e *exchange) inDriver(ctx context.Context) []string {
	snapshots := map[string]int{}
	all, err := e.driver.ListSnapshots(ctx, &csipb.ListSnapshotsRequest{})
	e.Must(err)
	for _, s := range all.GetEntries() {
		snapshots[s.GetSnapshot().GetSourceVolumeId()]++
	}
	var out []string
	for _, v := range e.driver.Volumes() {
		claim := "nobody's " + v.ID
		if pv, err := e.Client.CoreV1().PersistentVolumes().Get(ctx, v.Name, metav1.GetOptions{}); err == nil {
			claim = pv.Spec.ClaimRef.Name
		} else if !apierrors.IsNotFound(err) {
			claim += " " + err.Error()
		}
		out = append(out, line(claim, v.Bytes, len(v.Nodes), snapshots[v.ID]))
		delete(snapshots, v.ID)
	}
	for id, n := range snapshots {
		out = append(out, fmt.Sprintf("%d snapshots of %s, which does not exist", n, id))
	}
	slices.Sort(out)
	return out
}

// note remembers the number of calls at which the volumes existed and their creation was over.
func (e *exchange) note() {
	for _, v := range e.driver.Volumes() {
		if e.answered[v.Name] == 0 {
			e.answered[v.Name] = len(e.silence.all())
		}
	}
}

// nothingTwice checks that no volume is created that existed already or had been deleted. Only volplane may request
// again one whose claim was deleted, if it was killed before it could record that the volume was saved: it then deletes
// it.
func (e *exchange) nothingTwice() {
	e.T.Helper()
	over := e.answered
	for i, c := range e.silence.all() {
		switch r := c.request.(type) {
		case *csipb.DeleteVolumeRequest:
			name := strings.TrimPrefix(r.GetVolumeId(), "id-")
			if over[name] == 0 {
				over[name] = i + 1
			}
		case *csipb.CreateVolumeRequest:
			at, dropped := over[r.GetName()], e.dropped[r.GetName()]
			if at > 0 && i >= at && (!c.ours || dropped == 0 || i < dropped) {
				e.T.Errorf("the creation of %s was over at call %d, its claim deleted at %d, and call %d is another one:\n%s",
					r.GetName(), at, dropped, i, e.silence.about(r.GetName()))
			}
		}
	}
}
