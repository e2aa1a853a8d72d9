package mount8

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/volume"
)

// Exit statuses, as mount(8) has them.
const (
	exitOK          = 0
	exitUsage       = 1
	exitInterrupted = 8
	exitFailed      = 32
)

// Host is what a call needs of the program that it runs in.
type Host struct {
	Err io.Writer
	// Node is the name of this host's node.
	Node string
	// Client returns a client and the namespace of claims without one; the kubeconfig is empty for the usual one.
	Client func(kubeconfig string) (kubernetes.Interface, string, error)
	// Kubeconfig returns what Client reads for a kubeconfig, to be given to Client in another process, whose environment
	// may differ; empty if nothing is known.
	Kubeconfig func(kubeconfig string) string
	// Why returns one sentence about what a Pod waits for, or nothing.
	Why func(ctx context.Context, client kubernetes.Interface, ns, pod string) string
	// Explain returns the text of an error, with the next step.
	Explain func(error) string
	// Mounts reads and changes the mounts of this host.
	Mounts Mounts
}

// Mounts are the mounts of a host.
type Mounts struct {
	// At says what is mounted at a path, and whether anything is.
	At func(path string) (mount.Point, bool, error)
	// Trapped says whether an automount waits at a path. Make makes a directory, and says whether it was missing; Bind
	// mounts what is mounted at one directory at another one, too.
	Trapped func(path string) (bool, error)
	Make    func(path string) (made bool, err error)
	Bind    func(from, to string) error
	// Kept returns the arguments of the mount(8) that has called, and the options that fstab has for a path.
	Kept func(path string) (arguments, fstab string)
	// Unmount unmounts what is mounted at a path, unless something is mounted below it.
	Unmount func(path string) error
	// Note has umount(8) call this program for a path, with options that begin with x-. Noted returns these options.
	Note  func(ctx context.Context, path string, options []string) error
	Noted func(path string) map[string]string
}

// OfHost returns the mounts of this host.
func OfHost() Mounts {
	return Mounts{
		At: mount.At, Trapped: mount.Trapped, Make: makeStage, Unmount: unmountAlone, Note: note, Noted: noted,
		Kept: kept,
		Bind: func(from, to string) error { return mount.Bind(from, to, 0) },
	}
}

// Run does what mount(8) or umount(8) requests, and returns the exit status.
func Run(ctx context.Context, h Host, program string, args []string) int {
	c, err := Parse(program, here(), args)
	if err == nil && c.Dir != "" {
		c.Dir, err = filepath.Abs(c.Dir)
	}
	switch {
	case err != nil || c.Fake:
	case c.Umount:
		err = h.umount(ctx, c)
	default:
		err = h.mount(ctx, c)
	}
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(h.Err, "%s: %s\n", program, strings.Join(strings.FieldsFunc(h.Explain(err), func(r rune) bool {
		return r == '\n' || r == '\r'
	}), "; "))
	switch {
	case errors.Is(err, ErrUsage), apierrors.IsForbidden(err):
		return exitUsage
	case ctx.Err() != nil:
		return exitInterrupted
	}
	return exitFailed
}

// here returns the working directory as mount(8) names it, without symbolic links.
func here() string {
	dir, err := os.Getwd()
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	if err != nil {
		return "/"
	}
	return dir
}

func (h Host) mount(ctx context.Context, c Call) error {
	if wantsSubdir(h.Mounts.Kept(c.Dir)) {
		return errSubdir
	}
	var err error
	if c.Dir, err = filepath.EvalSymlinks(c.Dir); err != nil {
		return fmt.Errorf("create the directory first: %w", err)
	}
	if c.Dir == "/" {
		return fmt.Errorf("%w: a volume cannot be mounted at /", ErrUsage)
	}
	client, ns, err := h.Client(c.Kubeconfig)
	if err != nil {
		return err
	}
	c.Namespace = cmp.Or(c.Namespace, ns)
	limited, cancel := limit(ctx, c.Timeout)
	defer cancel()
	if err := ensureClaim(limited, client, c); err != nil {
		return err
	}
	node, err := doors.Node(limited, client, c.Node, h.Node)
	if err != nil {
		return err
	}
	if err := h.checkFree(limited, client, c, node); err != nil {
		return err
	}
	pod, err := h.bring(limited, client, c, node)
	if err != nil && pod == nil {
		return err
	}
	if err != nil {
		return h.because(ctx, client, pod, err, c.says("is not mounted at "+c.Dir),
			"; the request stays until 'volplane umount "+c.Dir+"'")
	}
	c.Node, c.Kubeconfig = node, h.Kubeconfig(c.Kubeconfig)
	h.note(limited, c)
	return nil
}

// note has umount(8) call this program. If that fails, the volume is mounted nevertheless, and what umount(8) does
// without the note is obeyed, too, but a little later.
func (h Host) note(ctx context.Context, c Call) {
	var options []string
	for name, value := range map[string]string{"kubeconfig": c.Kubeconfig, "node": c.Node} {
		// libmount separates options by commas; umount.volplane finds what is not noted as mount.volplane has found it.
		if value != "" && !strings.ContainsAny(value, ",\"") {
			options = append(options, noteprefix+name+"="+value)
		}
	}
	if err := h.Mounts.Note(ctx, c.Dir, options); err != nil {
		fmt.Fprintf(h.Err, "%s: %v\n", MountProgram, err)
	}
}

// bring has the volume mounted at the directory. If it returns no Pod, nothing was requested.
//
// While a process waits for an automount, the kernel lets only the processes pass that systemd has started for the
// mount: this one, and not the node agent. So the node agent mounts at a directory of its own, and this process there.
func (h Host) bring(ctx context.Context, client kubernetes.Interface, c Call, node string) (*corev1.Pod, error) {
	trapped, err := h.Mounts.Trapped(c.Dir)
	if err != nil {
		return nil, err
	}
	at, made := c.Dir, false
	if trapped {
		at = doors.Stage(c.Dir)
		if made, err = h.Mounts.Make(at); err != nil {
			return nil, err
		}
	}
	pod := doors.PodAtPath(c.Namespace, c.Claim, at, node, c.Options)
	if trapped {
		pod.Annotations[volume.AnnMountFor] = c.Dir
	} else {
		pod.Annotations[volume.AnnUnmountEnds] = "true"
	}
	if err := h.replace(ctx, client, pod, at, made); err != nil {
		return nil, err
	}
	seen := func() (bool, error) {
		_, mounted, err := h.Mounts.At(at)
		return mounted, err
	}
	if err := doors.MountHere(ctx, client, pod, seen); err != nil || !trapped {
		return pod, err
	}
	return pod, h.Mounts.Bind(at, c.Dir)
}

func makeStage(path string) (made bool, err error) {
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return false, err
	}
	err = os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrExist) {
		return false, nil
	}
	return err == nil, err
}

func (c Call) says(what string) string {
	return fmt.Sprintf("claim %s/%s %s", c.Namespace, c.Claim, what)
}

func limit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if d == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// because adds to an error what a Pod waits for and what stays, if nothing but time was missing.
func (h Host) because(
	ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, err error, what, stays string,
) error {
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%s: %w", what, err)
	}
	// The answer has a limit of its own: the caller that waits for this process has one, too.
	short, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	if why := h.Why(short, client, pod.Namespace, pod.Name); why != "" {
		return errors.New(why + ": " + what + stays)
	}
	return fmt.Errorf("%s%s: %w", what, stays, err)
}

// ensureClaim fails if the claim is missing or being deleted, and creates it if that is requested.
func ensureClaim(ctx context.Context, client kubernetes.Interface, c Call) error {
	claims := client.CoreV1().PersistentVolumeClaims(c.Namespace)
	has, err := claims.Get(ctx, c.Claim, metav1.GetOptions{})
	switch {
	case err == nil:
		return doors.CheckClaim(has)
	case !apierrors.IsNotFound(err):
		return fmt.Errorf("get claim: %w", err)
	case !c.Create:
		return errors.New(c.says("does not exist: create it, or mount with -o volplane.create,volplane.size=10Gi"))
	}
	claim := &corev1.PersistentVolumeClaim{}
	claim.Namespace, claim.Name = c.Namespace, c.Claim
	claim.Labels = map[string]string{volume.LabelMadeBy: MountProgram}
	claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	claim.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: c.Size}
	if c.Class != "" {
		claim.Spec.StorageClassName = &c.Class
	}
	_, err = claims.Create(ctx, claim, metav1.CreateOptions{FieldManager: doors.FieldManager})
	switch {
	case apierrors.IsAlreadyExists(err):
		return ensureClaim(ctx, client, c)
	case err != nil:
		return fmt.Errorf("create claim: %w", err)
	}
	return nil
}

// checkFree fails if something else than the claim is mounted at the directory: a mount over it would wait forever.
func (h Host) checkFree(ctx context.Context, client kubernetes.Interface, c Call, node string) error {
	at, mounted, err := h.Mounts.At(c.Dir)
	if err != nil || !mounted {
		return err
	}
	pod, _, err := h.podAt(ctx, client, node, c.Dir)
	switch {
	case err != nil:
		return err
	case pod == nil:
		return fmt.Errorf("another filesystem is mounted at %s: %s", c.Dir, at.Source)
	case pod.Namespace != c.Namespace || doors.ClaimOf(pod) != c.Claim:
		return fmt.Errorf("claim %s/%s is mounted at %s", pod.Namespace, doors.ClaimOf(pod), c.Dir)
	}
	return nil
}

// replace deletes a Pod that requests the same mount with other options, unless it is mounted: it was just unmounted
// manually, or the Pod still waits, and the newer request is valid. A Pod whose directory was missing until now, as
// after a boot, is also replaced: the node agent does not retry it immediately.
func (h Host) replace(ctx context.Context, client kubernetes.Interface, pod *corev1.Pod, dir string, made bool) error {
	if _, mounted, err := h.Mounts.At(dir); err != nil || mounted {
		return err
	}
	now, err := client.CoreV1().Pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get pod: %w", err)
	}
	if err := doors.CheckNode(now, pod); err != nil {
		return err
	}
	if !made && doors.SameOptions(now, pod) {
		return nil
	}
	return doors.Unmount(ctx, client, now)
}
