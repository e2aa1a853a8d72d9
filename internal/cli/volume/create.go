package volume

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cli/objects"
	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/volume"
)

// claimRequest is what a user requests of a claim. Empty fields are not requested.
type claimRequest struct {
	size, class, access string
	// snapshot and claim name what the data are copied from.
	snapshot, claim string
	block           bool
}

func (w *claimRequest) register(c *cobra.Command, s *shell.Shell) {
	f := c.Flags()
	f.StringVar(&w.size, "size", "", "size, such as 10Gi (default that of the copied data)")
	f.StringVar(&w.class, "class", "", "StorageClass (default the default class, or that of the copied claim)")
	f.StringVar(&w.access, "access", "",
		"who may use it: RWO (one node), RWX (many nodes), ROX (many nodes, read-only) or RWOP (one Pod) (default RWO)")
	f.StringVar(&w.snapshot, "from-snapshot", "", "copy the data of this snapshot")
	f.StringVar(&w.claim, "from-claim", "", "copy the data of this claim")
	f.BoolVar(&w.block, "block", false, "a block device instead of a filesystem")
	c.MarkFlagsMutuallyExclusive("from-snapshot", "from-claim")
	for flag, kind := range map[string]string{
		"class": "storageclass", "from-snapshot": "volumesnapshot", "from-claim": "pvc",
	} {
		_ = c.RegisterFlagCompletionFunc(flag, objects.CompleteNames(s, kind))
	}
	_ = c.RegisterFlagCompletionFunc("access",
		cobra.FixedCompletions([]string{"RWO", "RWX", "ROX", "RWOP"}, cobra.ShellCompDirectiveNoFileComp))
}

func createCommand(s *shell.Shell) *cobra.Command {
	var w claimRequest
	c := &cobra.Command{
		Use:   "create NAME --size SIZE",
		Short: "Create a claim: a volume by name",
		Long: `Create a claim, which is how a volume is asked for by name. With most classes,
the volume itself is made when the claim is mounted first. The command may be
repeated: a claim that is already there as asked for stays as it is.`,
		Example: `  volplane create data --size 10Gi
  volplane create shared --size 100Gi --class nfs --access RWX
  volplane create data-before --from-snapshot before-upgrade
  volplane create copy --from-claim data`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, ns, err := s.Client()
			if err != nil {
				return err
			}
			_, _, err = ensureClaim(cmd.Context(), s, client, ns, args[0], w)
			return err
		},
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	w.register(c, s)
	return c
}

// ensureClaim creates a claim unless a matching one exists, prints the result, and returns whether it created one.
func ensureClaim(
	ctx context.Context, s *shell.Shell, client kubernetes.Interface, ns, name string, w claimRequest,
) (claim *corev1.PersistentVolumeClaim, made bool, err error) {
	claims := client.CoreV1().PersistentVolumeClaims(ns)
	found, err := claims.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		var want *corev1.PersistentVolumeClaim
		if want, err = wanted(ctx, client, ns, name, w); err != nil {
			return nil, false, err
		}
		if found, err = createClaim(ctx, claims, want); err == nil {
			fmt.Fprintf(s.Out, "persistentvolumeclaim/%s created: %s\n", name, describedClaim(found))
			return found, true, nil
		}
	}
	if err != nil {
		return nil, false, fmt.Errorf("create claim %s: %w", name, err)
	}
	if err := doors.CheckClaim(found); err != nil {
		return nil, false, err
	}
	if err := w.mismatch(found); err != nil {
		return nil, false, fmt.Errorf("claim %s already exists, and %w", name, err)
	}
	fmt.Fprintf(s.Out, "persistentvolumeclaim/%s unchanged: %s\n", name, describedClaim(found))
	return found, false, nil
}

// createClaim creates a claim, as doors.Create does, so that the command knows what the server has created.
func createClaim(
	ctx context.Context, claims corev1client.PersistentVolumeClaimInterface, want *corev1.PersistentVolumeClaim,
) (*corev1.PersistentVolumeClaim, error) {
	made, err := doors.Create(ctx, claims.Create, want)
	if errors.Is(err, doors.ErrUnanswered) {
		err = fmt.Errorf("%w; 'volplane delete pvc %s' deletes it", err, want.Name)
	}
	return made, err
}

// describedClaim returns the size and the class of a claim.
func describedClaim(c *corev1.PersistentVolumeClaim) string {
	text := c.Spec.Resources.Requests.Storage().String()
	if class := ptr.Deref(c.Spec.StorageClassName, ""); class != "" {
		return text + " of class " + class
	}
	return text + ", of no class; there is no default class"
}

// wanted returns the requested claim, after it has read the source of its data.
func wanted(
	ctx context.Context, client kubernetes.Interface, ns, name string, w claimRequest,
) (*corev1.PersistentVolumeClaim, error) {
	var from origin
	source := w.claim
	if w.snapshot != "" {
		one, err := getSnapshot(ctx, client, ns, w.snapshot)
		if err != nil {
			return nil, err
		}
		if one.Status != nil && one.Status.RestoreSize != nil {
			from.size = *one.Status.RestoreSize
		}
		source = ptr.Deref(one.Spec.Source.PersistentVolumeClaimName, "")
	}
	if source != "" {
		claim, err := client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, source, metav1.GetOptions{})
		// A snapshot outlives the claim that it was taken of.
		if err != nil && (w.claim != "" || !apierrors.IsNotFound(err)) {
			return nil, fmt.Errorf("get claim %s: %w", source, err)
		}
		if err == nil {
			from.claim = claim
		}
	}
	return w.of(name, from)
}

// origin is what the data of a claim are copied from.
type origin struct {
	// size is how large the data are; zero if that is not known.
	size resource.Quantity
	// claim is the claim whose data they are, or were; nil if there is none.
	claim *corev1.PersistentVolumeClaim
}

var errNoSize = errors.New("set its size, for example: --size 10Gi")

// of returns the requested claim. What is not requested is as in the claim that the data come from.
func (w claimRequest) of(name string, from origin) (*corev1.PersistentVolumeClaim, error) {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}}
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	size := from.size
	if like := from.claim; like != nil {
		c.Spec.AccessModes, c.Spec.VolumeMode = like.Spec.AccessModes, like.Spec.VolumeMode
		c.Spec.StorageClassName = like.Spec.StorageClassName
		if size.IsZero() {
			size = sizeOf(like)
		}
	}
	if w.size != "" {
		var err error
		if size, err = doors.ParseSize(w.size); err != nil {
			return nil, fmt.Errorf("--size: %w", err)
		}
	}
	if size.IsZero() {
		return nil, errNoSize
	}
	if w.access != "" {
		mode, err := accessMode(w.access)
		if err != nil {
			return nil, err
		}
		c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{mode}
	}
	if w.block {
		c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	}
	if w.class != "" {
		c.Spec.StorageClassName = &w.class
	}
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: size}
	c.Spec.DataSource = w.source()
	return c, nil
}

// source returns the reference to what the data are copied from; nil if to nothing.
func (w claimRequest) source() *corev1.TypedLocalObjectReference {
	switch {
	case w.snapshot != "":
		return &corev1.TypedLocalObjectReference{
			APIGroup: ptr.To(volume.GroupSnapshot), Kind: volume.KindSnapshot, Name: w.snapshot,
		}
	case w.claim != "":
		return &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: w.claim}
	}
	return nil
}

// sizeOf returns the size that a claim has, or requests while it has none.
func sizeOf(c *corev1.PersistentVolumeClaim) resource.Quantity {
	if has, bound := c.Status.Capacity[corev1.ResourceStorage]; bound {
		return has
	}
	return *c.Spec.Resources.Requests.Storage()
}

// accessMode returns the access mode of a short or a long name.
func accessMode(word string) (corev1.PersistentVolumeAccessMode, error) {
	for short, mode := range doors.AccessModes() {
		if strings.EqualFold(word, short) || strings.EqualFold(word, string(mode)) {
			return mode, nil
		}
	}
	return "", fmt.Errorf("--access %.80q: use RWO, RWX, ROX or RWOP", word)
}

// mismatch returns an error if a claim does not meet the request.
func (w claimRequest) mismatch(c *corev1.PersistentVolumeClaim) error {
	all := doors.ClaimRequest{Class: w.class, Block: w.block, Source: w.source()}
	if w.size != "" {
		size, err := doors.ParseSize(w.size)
		if err != nil {
			return fmt.Errorf("--size: %w", err)
		}
		all.Size = &size
	}
	if w.access != "" {
		var err error
		if all.Access, err = accessMode(w.access); err != nil {
			return err
		}
	}
	return all.Mismatch(c)
}
