package volume

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/kube"
)

// takeBackTime limits how long an interrupted command takes back what it has begun.
const takeBackTime = 10 * time.Second

// begun is a mount with what the command has made for it, and takes back if it is interrupted.
type begun struct {
	*shell.Shell
	client    kubernetes.Interface
	node, dir string
	pod       *corev1.Pod
	// claim is the claim that was created; nil if it existed before.
	claim *corev1.PersistentVolumeClaim
	// madeDirs are the directories that were not there, the topmost first.
	madeDirs []string
	// madePod says that the Pod was not there.
	madePod bool
}

// claimFor finds the claim, or creates it if that is requested.
func (b *begun) claimFor(ctx context.Context, ns, name string, m mountOptions) error {
	if m.create {
		claim, made, err := ensureClaim(ctx, b.Shell, b.client, ns, name, m.claimRequest)
		if made {
			b.claim = claim
		}
		return err
	}
	has, err := b.client.CoreV1().PersistentVolumeClaims(ns).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("claim %s does not exist in namespace %s: create it with 'volplane create' or --create, or "+
			"see 'volplane get pvc -A'", name, ns)
	case err != nil:
		return fmt.Errorf("get claim %s: %w", name, err)
	}
	return doors.CheckClaim(has)
}

// directory makes the directory if the node is this host. Elsewhere, the agent says what it misses.
func (b *begun) directory(asked string) error {
	if !here(b.Shell, b.node, asked) {
		return nil
	}
	var err error
	if b.madeDirs, err = makeDirs(b.dir); err != nil {
		return fmt.Errorf("create the directory to mount at: %w", err)
	}
	return nil
}

// makeDirs makes a directory and those above it that are missing, and returns what it has made, the topmost first.
func makeDirs(dir string) (made []string, err error) {
	// Users of the volume pass through the directories above it, and the volume covers the last one.
	const mode = 0o755
	if err = os.Mkdir(dir, mode); errors.Is(err, fs.ErrNotExist) {
		if made, err = makeDirs(filepath.Dir(dir)); err == nil {
			err = os.Mkdir(dir, mode)
		}
	}
	switch {
	case err == nil:
		return append(made, dir), nil
	case errors.Is(err, fs.ErrExist):
		return made, nil
	}
	return made, err
}

// here says whether a node is this host: the host's own, or that of an API server on this host if no other was
// requested.
func here(s *shell.Shell, node, asked string) bool {
	return node == s.ThisNode() || asked == "" && onThisHost(s)
}

// onThisHost says whether the API server is reached by an address of the loopback device.
func onThisHost(s *shell.Shell) bool {
	config, err := s.Config()
	if err != nil {
		return false
	}
	server, err := url.Parse(config.Host)
	return err == nil && net.ParseIP(server.Hostname()).IsLoopback()
}

// mount requests the mount and waits until it exists.
func (b *begun) mount(ctx context.Context, m mountOptions) error {
	pods := b.client.CoreV1().Pods(b.pod.Namespace)
	switch has, err := pods.Get(ctx, b.pod.Name, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		b.madePod = true
	case err != nil:
		return b.takenBack(fmt.Errorf("get pod %s: %w", b.pod.Name, err))
	case has.DeletionTimestamp != nil, cluster.Finished(has):
		b.madePod = true
	case readOnly(has) != readOnly(b.pod):
		return b.takenBack(fmt.Errorf("mount claim %s: it is already mounted there, read-only %t (pod %s): undo this with "+
			"'volplane umount' first", doors.ClaimOf(has), readOnly(has), has.Name))
	}
	limited, cancel := shell.WithTimeout(ctx, m.timeout)
	defer cancel()
	claim := doors.ClaimOf(b.pod)
	why := func(ctx context.Context) string { return shell.Answer(ctx, b.client, b.pod.Namespace, b.pod.Name) }
	err := shell.Progress(limited, b.Err, why, func(ctx context.Context) error { return b.await(ctx, m.node) })
	switch {
	case ctx.Err() != nil && err != nil:
		return b.takenBack(ctx.Err())
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("claim %s is not mounted after %s: %s\nThe Pod still requests the mount; undo it with "+
			"'volplane umount %s'", claim, m.timeout, why(context.WithoutCancel(ctx)), b.dir)
	case err != nil:
		return fmt.Errorf("mount claim %s: %w", claim, err)
	}
	return nil
}

// await requests the mount and waits until it exists, and on this host until this process sees it, too.
func (b *begun) await(ctx context.Context, asked string) error {
	if !here(b.Shell, b.node, asked) {
		return doors.Mount(ctx, b.client, b.pod)
	}
	err := doors.MountHere(ctx, b.client, b.pod, func() (bool, error) { return mountPoint(b.dir) == nil, nil })
	if errors.Is(err, doors.ErrUnseen) && b.node != b.ThisNode() {
		return fmt.Errorf("%w; if that node is another host, add --node %s", err, b.node)
	}
	return err
}

// readOnly says whether a Pod wants its claim read-only.
func readOnly(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ReadOnly
	})
}

// takenBack takes back what the command has made, and returns the error with what stays.
func (b *begun) takenBack(cause error) error {
	ctx, cancel := context.WithTimeout(context.Background(), takeBackTime)
	defer cancel()
	stays := b.stays(ctx)
	text := cause.Error()
	if errors.Is(cause, context.Canceled) {
		text = "interrupted"
	}
	if len(stays) == 0 {
		return errors.New(text + "; everything that was begun is undone")
	}
	return errors.New(text + "; " + strings.Join(stays, "; "))
}

// stays removes what the command has made, in reverse order, and says what stays.
func (b *begun) stays(ctx context.Context) []string {
	if b.pod != nil {
		if stays := b.withoutPod(ctx); stays != "" {
			return []string{stays}
		}
	}
	var out []string
	for _, dir := range slices.Backward(b.madeDirs) {
		// Files that were put there stay, because only an empty directory can be removed.
		if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			out = append(out, fmt.Sprintf("directory %s stays (%v)", dir, err))
			break
		}
	}
	if b.claim != nil {
		if err := b.withoutClaim(ctx); err != nil {
			out = append(out, fmt.Sprintf("claim %s stays (%v): 'volplane delete pvc %s' deletes it", b.claim.Name, err,
				b.claim.Name))
		}
	}
	return out
}

// withoutPod deletes the Pod if the command has made it and its volume is not mounted, and says what stays.
func (b *begun) withoutPod(ctx context.Context) string {
	undo := fmt.Sprintf("'volplane umount %s' undoes it", b.dir)
	pod, err := b.client.CoreV1().Pods(b.pod.Namespace).Get(ctx, b.pod.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return ""
	case err != nil:
		return fmt.Sprintf("the Pod that requests the mount may stay (%v): %s", err, undo)
	case pod.DeletionTimestamp == nil && (!b.madePod || cluster.Mounted(pod)):
		return "the mount was requested before, and stays: " + undo
	}
	if err := doors.Unmount(ctx, b.client, pod); err != nil {
		return fmt.Sprintf("pod %s is being deleted, and its volume may still be mounted (%v)", pod.Name, err)
	}
	return ""
}

// withoutClaim deletes the claim that the command has created, unless it has a volume or a Pod uses it: then it is no
// longer the command's alone.
func (b *begun) withoutClaim(ctx context.Context) error {
	claims := b.client.CoreV1().PersistentVolumeClaims(b.claim.Namespace)
	claim, err := claims.Get(ctx, b.claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case claim.Spec.VolumeName != "":
		return errors.New("it has a volume")
	}
	pods, err := b.client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		if p := &pods.Items[i]; slices.Contains(cluster.ClaimNames(p), claim.Name) {
			return fmt.Errorf("pod %s uses it", p.Name)
		}
	}
	err = claims.Delete(ctx, claim.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
		UID: &b.claim.UID, ResourceVersion: ptr.To(claim.ResourceVersion),
	}})
	if err != nil {
		return kube.Unless(apierrors.IsNotFound(err), err)
	}
	from := kube.Source[*corev1.PersistentVolumeClaim]{Get: claims.Get, Watch: claims.Watch}
	return kube.Follow(ctx, from, claim.Name, func(now *corev1.PersistentVolumeClaim) (bool, error) {
		return now == nil || now.UID != claim.UID, nil
	})
}
