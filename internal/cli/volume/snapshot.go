package volume

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/volume"
)

// snapshotPoll is the interval at which a snapshot is read that the command waits for.
const snapshotPoll = 200 * time.Millisecond

type snapshotOptions struct {
	class   string
	timeout time.Duration
}

func snapshotCommand(s *shell.Shell) *cobra.Command {
	var o snapshotOptions
	c := &cobra.Command{
		Use:   "snapshot CLAIM [NAME]",
		Short: "Take a snapshot of a claim's volume, and wait until it can be used",
		Long: `Take a snapshot of a claim's volume, and wait until it can be used.

Without NAME, the snapshot gets the name of the claim with the time. Without
--class, it gets the default VolumeSnapshotClass of the volume's driver.`,
		Example: `  volplane snapshot data
  volplane snapshot data before-upgrade --class fast`,
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: objects.CompleteClaim(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			claim := claimName(args[0])
			name := claim + time.Now().UTC().Format("-20060102-150405")
			if len(args) > 1 {
				name = args[1]
			}
			return snapshot(cmd.Context(), s, o, claim, name)
		},
	}
	c.Flags().StringVar(&o.class, "class", "", "VolumeSnapshotClass (default that of the volume's driver)")
	_ = c.RegisterFlagCompletionFunc("class", objects.CompleteNames(s, "volumesnapshotclass"))
	c.Flags().DurationVar(&o.timeout, "timeout", 2*time.Minute, "how long to wait; 0 for no limit")
	return c
}

func snapshot(ctx context.Context, s *shell.Shell, o snapshotOptions, claim, name string) error {
	client, ns, err := s.Client()
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, claim, metav1.GetOptions{}); err != nil {
		return err
	}
	want := &snapshotv1.VolumeSnapshot{
		TypeMeta:   metav1.TypeMeta{APIVersion: gather.SnapshotsVersion, Kind: volume.KindSnapshot},
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: snapshotv1.VolumeSnapshotSpec{
			Source: snapshotv1.VolumeSnapshotSource{PersistentVolumeClaimName: &claim},
		},
	}
	if o.class != "" {
		want.Spec.VolumeSnapshotClassName = &o.class
	}
	body, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encode snapshot %s: %w", name, err)
	}
	if err := client.Discovery().RESTClient().Post().
		AbsPath("/apis/"+gather.SnapshotsVersion, "namespaces", ns, volume.ResourceSnapshots).
		SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error(); err != nil {
		return snapshotProblem(client, err)
	}
	if err := awaitSnapshot(ctx, client, ns, name, o.timeout); err != nil {
		return err
	}
	fmt.Fprintf(s.Out, "volumesnapshot/%s is ready to use\n", name)
	return nil
}

// snapshotProblem returns gather.ErrNoSnapshots in the place of the error of a server that does not have them.
func snapshotProblem(client kubernetes.Interface, err error) error {
	if !apierrors.IsNotFound(err) {
		return err
	}
	_, missing := client.Discovery().ServerResourcesForGroupVersion(gather.SnapshotsVersion)
	if apierrors.IsNotFound(missing) {
		return gather.ErrNoSnapshots
	}
	return err
}

// awaitSnapshot waits until a snapshot can be used.
func awaitSnapshot(
	ctx context.Context, client kubernetes.Interface, ns, name string, timeout time.Duration,
) error {
	ctx, cancel := shell.WithTimeout(ctx, timeout)
	defer cancel()
	last := "no program has begun to take it: does a snapshot-controller run?"
	err := wait.PollUntilContextCancel(ctx, snapshotPoll, true, func(ctx context.Context) (bool, error) {
		one, err := getSnapshot(ctx, client, ns, name)
		if err != nil {
			return false, err
		}
		switch status := one.Status; {
		case status == nil:
		case status.Error != nil:
			last = ptr.Deref(status.Error.Message, "")
		case status.BoundVolumeSnapshotContentName != nil:
			last = "the driver is taking it"
		}
		return one.Status != nil && ptr.Deref(one.Status.ReadyToUse, false), nil
	})
	if wait.Interrupted(err) {
		return fmt.Errorf("snapshot %s is not ready: %s; 'volplane why volumesnapshot/%s' says more", name, last, name)
	}
	return err
}

func getSnapshot(
	ctx context.Context, client kubernetes.Interface, ns, name string,
) (*snapshotv1.VolumeSnapshot, error) {
	one, err := kube.NewSnapshotObjects(client).Snapshot(ctx, ns, name)
	if err != nil {
		return nil, snapshotProblem(client, err)
	}
	return one, nil
}

// claimName returns the name in an argument, which may say that it is a claim's.
func claimName(arg string) string {
	return strings.TrimPrefix(strings.TrimPrefix(arg, "pvc/"), "persistentvolumeclaim/")
}
