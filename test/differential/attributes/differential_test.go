package attributes

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/csi/csitest"
	"volplane.dev/volplane/test/internal/differential"
	"volplane.dev/volplane/test/internal/upstream"
)

// TestModifyIsKubernetes plays the same sequences to volplane's modifier and to Kubernetes' resizer, each with its own
// driver and beside a resizer that expands volumes. It compares all claims, volumes and events, the calls of the
// drivers and what these were passed about their volumes. Both programs are killed. It plays them without and with
// --extra-modify-metadata.
func TestModifyIsKubernetes(t *testing.T) {
	t.Parallel()
	for _, extra := range []bool{false, true} {
		t.Run(fmt.Sprint("extra=", extra), func(t *testing.T) { differential.CompareAll(t, modifyDifferential(t, extra)) })
	}
}

// modifyDifferential starts both sides, which may pass drivers the claim of each call.
func modifyDifferential(t *testing.T, extra bool) *differential.Differential {
	t.Helper()
	ours, theirs := differential.NewSide(t, "volplane", modifying()), differential.NewSide(t, "kubernetes", modifying())
	theirs.Options = []string{fmt.Sprint("--extra-modify-metadata=", extra)}
	ours.Options = []string{fmt.Sprint("--resizer-extra-modify-metadata=", extra)}
	for _, s := range []side{ours, theirs} {
		s.Storage.Start(t, func(c *csitest.Config) { c.Node.Expand = false })
		s.Storage.Modifies()
	}
	ours.StartController(func() func() { return ourModifier(t, ours) })
	theirs.StartController(func() func() { return theirResizer(t, theirs) })
	return &differential.Differential{
		Sides: []side{ours, theirs}, Few: 2, Draw: drawModifying, Beyond: beyondModifying,
		Allowed: func(ours, theirs []string) string {
			return differential.Explain(ours, theirs,
				modifyRows())
		}, Counted: map[string]int{},
	}
}

// awakeAttributes are the attributes that show that the controllers run.
const awakeAttributes = "awake"

// modifying compares changes of attributes, and nothing else.
func modifying() topic {
	return topic{
		Pause: upstream.SyncPeriod, States: modifyStates, Awake: awakeModifying, Touch: touchClaims,
		Remove: differential.EndClaims,
	}
}

// ourModifier runs volplane's controllers that change volumes, as a program that can be killed.
func ourModifier(t *testing.T, s side) (stop func()) {
	t.Helper()
	p := upstream.Start(t, "volplane", append([]string{"controller", "--controllers=modifier,resizer"}, append(s.Options,
		"--leader-election=false", "--csi-address="+s.Storage.Driver.Socket,
		"--kubeconfig="+s.Server.AdminKubeconfig())...)...)
	return func() {
		p.Kill()
		if said := p.Log.String(); strings.Contains(said, "not declared") {
			t.Errorf("volplane said:\n%s", said)
		}
	}
}

// theirResizer runs Kubernetes' resizer, which also changes attributes. It resyncs after a second, not after 10
// minutes: it forgets a claim that it sees before the claim's volume.
func theirResizer(t *testing.T, s side) (stop func()) {
	t.Helper()
	return s.Run(t, "csi-resizer", append(s.Options, "--csi-address="+s.Storage.Driver.Socket, "--leader-election=false",
		"--feature-gates=VolumeAttributesClass=true", "--kube-api-qps=5000", "--kube-api-burst=5000",
		"--modify-timeout=1m", "--resize-timeout=1m", "--workers="+strconv.Itoa(2*differential.Batch), "--resync-period=1s",
		"--retry-interval-start=100ms", "--retry-interval-max="+upstream.LongestRetry.String())...)
}

// beyondModifying returns what is wrong with calls and events, although their numbers differ between the sides.
// Kubernetes drops events when a thousand wait to be written, and after 25 about an object: what it has reported about
// a claim must be reported here.
func beyondModifying(ours, theirs []string) string {
	wrong := calledTooOften(ours, theirs)
	for _, line := range theirs {
		if strings.HasPrefix(line, differential.Aside+"told of ") && !slices.Contains(ours, line) {
			wrong += "  kubernetes  " + line + "\n"
		}
	}
	return wrong
}

// calledTooOften names the volumes for which volplane's driver was called much more often than that of Kubernetes,
// whose pauses are short here. Calls after a restart are allowed.
func calledTooOften(ours, theirs []string) string {
	var b strings.Builder
	for _, line := range ours {
		v, n, ok := callsIn(line)
		if !ok {
			continue
		}
		other := 0
		for _, l := range theirs {
			if w, m, ok := callsIn(l); ok && v == w {
				other = m
			}
		}
		if n > 2*other+5 {
			fmt.Fprintf(&b, "  volplane    called ControllerModifyVolume of %s %d times, Kubernetes %d times\n", v, n, other)
		}
	}
	return b.String()
}

// callsIn returns the number of calls for a volume in a line.
func callsIn(line string) (v string, n int, ok bool) {
	_, err := fmt.Sscanf(line, differential.Aside+"called %s %d times", &v, &n)
	return v, n, err == nil
}

// awakeModifying waits until a side has changed
// the attributes of a volume.
func awakeModifying(ctx context.Context, s side, name string) error {
	vac := &storagev1.VolumeAttributesClass{
		ObjectMeta: metav1.ObjectMeta{Name: awakeAttributes}, DriverName: differential.DriverName,
		Parameters: map[string]string{"iops": "1"},
	}
	if _, err := s.Client.StorageV1().VolumeAttributesClasses().Create(ctx, vac, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return err
	}
	c := upstream.ClaimOf(name, "")
	c.Spec.VolumeAttributesClassName = ptr.To(awakeAttributes)
	claims := s.Client.CoreV1().PersistentVolumeClaims("default")
	if err := makeModifiable(ctx, s, "default", c,
		differential.CSIVolume(name, differential.DriverName, corev1.ReadWriteOnce)); err != nil {
		return err
	}
	err := upstream.Poll(ctx, func() (bool, error) {
		c, err := claims.Get(ctx, name, metav1.GetOptions{})
		return err == nil && ptr.Deref(c.Status.CurrentVolumeAttributesClassName, "") == awakeAttributes, err
	})
	if err != nil {
		return fmt.Errorf("%s changes no attributes: %w", s.Name, err)
	}
	if err := s.UnprotectClaim(ctx, "default", name); err != nil {
		return err
	}
	if err := claims.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if err := s.Client.CoreV1().PersistentVolumes().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	if _, err := s.Client.CoreV1().PersistentVolumes().Patch(ctx, name, types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil && !upstream.Refused(err) {
		return err
	}
	return s.DeleteAtDriver(ctx, "", "id-"+name)
}

// touchClaims edits claims. It ends the pauses of volplane's modifier, which reconciles a claim again when that is
// bound again; those of Kubernetes are short here, and it would consider an unbound claim to be one without work. But
// its resizer applies the answers to its writes over later states from its watch, and has conflicts until the claim is
// written: any edit will do.
func touchClaims(ctx context.Context, s side, space string, mark int) error {
	patches, part := []string{fmt.Sprintf(`{"metadata":{"labels":{"touched":"%d"}}}`, mark)}, ""
	if s.Name == "volplane" {
		patches, part = []string{`{"status":{"phase":"Lost"}}`, `{"status":{"phase":"Bound"}}`}, "status"
	}
	all, err := s.Client.CoreV1().PersistentVolumeClaims(space).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		if all.Items[i].Status.Phase != corev1.ClaimBound {
			continue
		}
		for _, patch := range patches {
			_, err := s.Client.CoreV1().PersistentVolumeClaims(space).Patch(ctx, all.Items[i].Name, types.MergePatchType,
				[]byte(patch), metav1.PatchOptions{}, part)
			if err != nil && !upstream.Refused(err) {
				return err
			}
		}
	}
	return nil
}
