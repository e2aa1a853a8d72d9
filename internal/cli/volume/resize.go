package volume

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/cluster"
	decide "volplane.dev/volplane/internal/decide/resize"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

func resizeCommand(s *shell.Shell) *cobra.Command {
	timeout := 2 * time.Minute
	c := &cobra.Command{
		Use:   "resize CLAIM SIZE",
		Short: "Expand the volume of a claim, and wait until it is expanded",
		Long: `Expand the volume of a claim, also while it is mounted, and wait until it is expanded.
A volume cannot shrink. The filesystem of a volume that is not mounted
grows when it is mounted next.`,
		Example:           `  volplane resize data 20Gi`,
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: objects.CompleteClaim(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			size, err := doors.ParseSize(args[1])
			if err != nil {
				return err
			}
			return resize(cmd.Context(), s, claimName(args[0]), size, timeout)
		},
	}
	c.Flags().DurationVar(&timeout, "timeout", timeout, "how long to wait; 0 for no limit")
	return c
}

func resize(ctx context.Context, s *shell.Shell, name string, size resource.Quantity, timeout time.Duration) error {
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	claims := client.CoreV1().PersistentVolumeClaims(ns)
	claim, err := claims.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := mayResize(claim, size); err != nil {
		return err
	}
	before, err := growthRefused(ctx, client, claim)
	if err != nil {
		return err
	}
	if asked := claim.Spec.Resources.Requests[corev1.ResourceStorage]; asked.Cmp(size) == 0 {
		before = nil // what was refused before is refused now
	}
	patch, err := json.Marshal(map[string]any{
		// The UID excludes another claim of the same name.
		"metadata": map[string]any{"uid": claim.UID},
		"spec":     map[string]any{"resources": map[string]any{"requests": map[string]any{"storage": size.String()}}},
	})
	if err != nil {
		return fmt.Errorf("encode size: %w", err)
	}
	if _, err := claims.Patch(ctx, name, types.MergePatchType, patch,
		metav1.PatchOptions{FieldManager: doors.FieldManager}); err != nil {
		return fmt.Errorf("resize claim %s: %w", name, err)
	}
	ctx, cancel := shell.WithTimeout(ctx, timeout)
	defer cancel()
	return awaitSize(ctx, s, client, claim, size, before)
}

// mayResize refuses what is impossible, before anything is requested.
func mayResize(c *corev1.PersistentVolumeClaim, size resource.Quantity) error {
	has, bound := c.Status.Capacity[corev1.ResourceStorage]
	switch {
	case !bound:
		return fmt.Errorf("claim %s has no volume yet that could be expanded: mount it first, or delete it and create it "+
			"with that size", c.Name)
	case size.Cmp(has) < 0:
		return fmt.Errorf("the volume of claim %s has %s, and volumes cannot shrink: create another claim, and "+
			"copy the files", c.Name, has.String())
	}
	return nil
}

// errGrowthRefused says that the expansion of a volume is not retried in its current state.
var errGrowthRefused = errors.New("refused")

// growthRefused returns the versions of the events that say that a driver does not expand the filesystem of a claim
// while it is mounted. CSI forbids the node to try again before the volume is mounted again.
func growthRefused(
	ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim,
) (map[types.UID]string, error) {
	events, err := client.CoreV1().Events(claim.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("involvedObject.uid", string(claim.UID)).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	found := map[types.UID]string{}
	for _, e := range events.Items {
		if e.Reason == string(volume.ReasonFailedNodeResize) && e.InvolvedObject.UID == claim.UID &&
			volume.CauseOf(e.Annotations[volume.AnnCause], e.Message).Code == codes.FailedPrecondition.String() {
			found[e.UID] = e.ResourceVersion
		}
	}
	return found, nil
}

// isRefusedAnew says whether the growth was refused after the refusals before.
func isRefusedAnew(
	ctx context.Context, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim, before map[types.UID]string,
) bool {
	now, err := growthRefused(ctx, client, claim)
	for uid, version := range now {
		if old, known := before[uid]; err == nil && (!known || old != version) {
			return true
		}
	}
	return false
}

// awaitSize waits until a claim has its size, or everything is done but what the next mount does, or it was refused:
// before are the refusals of earlier requests.
func awaitSize(
	ctx context.Context, s *shell.Shell, client kubernetes.Interface, claim *corev1.PersistentVolumeClaim,
	size resource.Quantity, before map[types.UID]string,
) error {
	ns, name := claim.Namespace, claim.Name
	ctx, refuse := context.WithCancelCause(ctx)
	defer refuse(nil)
	why := func(ctx context.Context) string { return shell.Facts(client).Headline(ctx, "pvc", ns, name) }
	// A user who sees what the command waits for also sees that it has ended.
	tell := func(ctx context.Context) string {
		if isRefusedAnew(ctx, client, claim, before) {
			refuse(errGrowthRefused)
		}
		return why(ctx)
	}
	claims := client.CoreV1().PersistentVolumeClaims(ns)
	from := kube.Source[*corev1.PersistentVolumeClaim]{Get: claims.Get, Watch: claims.Watch}
	said := ""
	err := shell.Progress(ctx, s.Err, tell, func(ctx context.Context) error {
		return kube.Follow(ctx, from, name, func(c *corev1.PersistentVolumeClaim) (done bool, err error) {
			switch {
			case c == nil || c.UID != claim.UID:
				return false, fmt.Errorf("claim %s is deleted", name)
			case decide.IsInfeasible(c):
				return false, errGrowthRefused
			}
			said, err = grown(ctx, client, c, size)
			return said != "", err
		})
	})
	if err != nil && errors.Is(context.Cause(ctx), errGrowthRefused) {
		err = errGrowthRefused
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, errGrowthRefused):
		return fmt.Errorf("claim %s does not have %s yet: %s\nIt still asks for it", name, size.String(),
			why(context.WithoutCancel(ctx)))
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("interrupted; claim %s still asks for %s", name, size.String())
	case err != nil:
		return fmt.Errorf("resize claim %s: %w", name, err)
	}
	fmt.Fprintf(s.Out, "persistentvolumeclaim/%s %s\n", name, said)
	return nil
}

// grown returns the result of the expansion of a claim if there is nothing left to wait for.
func grown(
	ctx context.Context, client kubernetes.Interface, c *corev1.PersistentVolumeClaim, size resource.Quantity,
) (said string, err error) {
	if has := c.Status.Capacity[corev1.ResourceStorage]; has.Cmp(size) >= 0 {
		return "has " + has.String(), nil
	}
	if !growsAtMount(c) {
		return "", nil
	}
	used, err := inUse(ctx, client, c.Namespace, c.Name)
	if used || err != nil {
		return "", err
	}
	return "has an expanded volume; its filesystem is expanded when it is next mounted", nil
}

// growsAtMount says whether the volume has grown and its filesystem has not.
func growsAtMount(c *corev1.PersistentVolumeClaim) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(c corev1.PersistentVolumeClaimCondition) bool {
		return c.Type == corev1.PersistentVolumeClaimFileSystemResizePending && c.Status == corev1.ConditionTrue
	})
}

// inUse says whether a Pod that has not ended uses a claim on some node.
func inUse(ctx context.Context, client kubernetes.Interface, ns, claim string) (bool, error) {
	pods, err := client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("list pods: %w", err)
	}
	return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
		return p.Spec.NodeName != "" && !cluster.Finished(&p) && slices.Contains(cluster.ClaimNames(&p), claim)
	}), nil
}
