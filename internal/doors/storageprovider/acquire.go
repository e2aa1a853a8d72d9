package storageprovider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/cluster"
	"volplane.dev/volplane/internal/doors"
	"volplane.dev/volplane/internal/doors/users"
	"volplane.dev/volplane/internal/volume"
)

// Types of volumes. We have no regular files.
const (
	directory = "dir"
	device    = "blk"
	file      = "reg"
)

const (
	// user is the only one that is counted: it is not known who uses a volume, only when it was acquired.
	user = "acquired"
	// undoLimit is how long a call that has failed may take to say so.
	undoLimit = 2 * time.Second
	// waitLimit is how long a volume is waited for, so that a call can end in time.
	waitLimit = callLimit - users.WhyLimit - undoLimit - time.Second
)

// request is the content of a call of Acquire.
type request struct {
	name, mode, template, kind string
	// readOnly is nil for the best that there is.
	readOnly *bool
	size     int64
}

// requestOf reads a call.
func requestOf(q call) (request, error) {
	w := request{mode: "any"}
	var size *int64
	var interactive bool
	err := q.read(map[string]any{
		"name": &w.name, "createMode": &w.mode, "template": &w.template, "requestAs": &w.kind, "readOnly": &w.readOnly,
		"createSizeBytes": &size, "allowInteractiveAuthentication": &interactive,
	})
	if err != nil {
		return w, err
	}
	w.size = ptr.Deref(size, 0)
	if size != nil && w.size <= 0 {
		return w, invalid("createSizeBytes")
	}
	readOnly := ptr.Deref(w.readOnly, false)
	if readOnly && w.mode != "new" {
		w.mode = "open"
	}
	return w, w.check(readOnly)
}

// check says whether a request can be met by any volume.
func (w request) check(readOnly bool) error {
	switch {
	case len(validation.IsDNS1123Subdomain(w.name)) > 0:
		return invalid("name")
	case !slices.Contains([]string{"any", "new", "open"}, w.mode):
		return invalid("createMode")
	case !slices.Contains([]string{"", directory, device, file}, w.kind):
		return invalid("requestAs")
	case w.template != "" && len(validation.IsDNS1123Subdomain(w.template)) > 0:
		return invalid("template")
	case readOnly && w.mode == "new":
		return invalid("readOnly")
	case w.kind == file:
		return fails("TypeNotSupported")
	}
	return nil
}

// acquire opens a volume for the caller.
func (d *Door) acquire(ctx context.Context, q call, send answers) error {
	w, err := requestOf(q)
	if err != nil {
		return err
	}
	claim, err := d.claim(ctx, w)
	if err != nil {
		return err
	}
	readOnly := ptr.Deref(w.readOnly, readsOnly(claim))
	pod := doors.Pod(metav1.ObjectMeta{Name: podName(claim.Name, d.Node, readOnly)}, claim.Name, d.Node)
	pod.Spec.Volumes[0].PersistentVolumeClaim.ReadOnly = readOnly
	if pod, err = d.users.Take(ctx, pod, user); err != nil {
		return fmt.Errorf("volume %s is not mounted: %w", w.name, err)
	}
	opened, isReadOnly, err := d.opened(ctx, pod, claim, readOnly)
	if err == nil && isReadOnly && w.readOnly != nil && !*w.readOnly {
		err = errors.Join(fails("ReadOnlyVolume"), opened.Close())
	}
	if err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoLimit)
		defer cancel()
		if back := d.users.Fail(undo, pod, user); back != nil {
			d.log.Warn("storage provider: a failed call stays counted for a while", "volume", w.name, "err", back)
		}
		return fmt.Errorf("volume %s is not acquired: %w", w.name, err)
	}
	r := map[string]any{"fileDescriptorIndex": 0, "type": typeOf(claim), "readOnly": isReadOnly}
	if typeOf(claim) == directory {
		// Users of the host are those of the volume.
		r["baseUID"], r["baseGID"] = 0, 0
	}
	return passed(send, reply{Parameters: r}, opened)
}

// opened waits until the volume of a Pod is mounted, and opens it.
func (d *Door) opened(
	ctx context.Context, pod *corev1.Pod, claim *corev1.PersistentVolumeClaim, readOnly bool,
) (*os.File, bool, error) {
	within, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	path, err := d.users.Await(within, pod)
	if err != nil {
		if late := within.Err(); late != nil {
			err = fmt.Errorf("%w (%w)", err, late)
		}
		return nil, false, d.users.Explained(ctx, pod, err)
	}
	type result struct {
		file     *os.File
		readOnly bool
		err      error
	}
	ended := make(chan result)
	go func() {
		var r result
		r.file, r.readOnly, r.err = d.open(path, cluster.IsBlock(claim.Spec.VolumeMode), readOnly)
		select {
		case ended <- r:
		case <-within.Done():
			_ = r.file.Close() // no caller waits for it any more
		}
	}()
	select {
	case r := <-ended:
		return r.file, r.readOnly, r.err
	case <-within.Done():
		return nil, false, fmt.Errorf("its filesystem does not answer: %w", within.Err())
	}
}

// claim returns the claim that a request names, and creates it if that is requested.
func (d *Door) claim(ctx context.Context, w request) (*corev1.PersistentVolumeClaim, error) {
	if w.template != "" {
		_, err := d.client.StorageV1().StorageClasses().Get(ctx, w.template, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil, fails("NoSuchTemplate")
		}
		if err != nil {
			return nil, fmt.Errorf("get class: %w", err)
		}
	}
	for {
		c, exists := d.claims.Get(types.NamespacedName{Namespace: d.Namespace, Name: w.name}.String())
		if exists {
			return c, w.fits(c)
		}
		switch {
		case w.mode == "open":
			return nil, fails("NoSuchVolume")
		case w.size == 0:
			return nil, fails("CreateSizeRequired")
		}
		made, err := d.claims.Create(ctx, d.newClaim(w))
		if !apierrors.IsAlreadyExists(err) {
			return made, err
		}
		if _, err := d.claims.Look(ctx, d.Namespace, w.name); err != nil {
			return nil, err
		}
	}
}

// fits says whether a claim meets the request.
func (w request) fits(c *corev1.PersistentVolumeClaim) error {
	switch {
	case w.mode == "new":
		return fails("VolumeExists")
	case w.kind != "" && w.kind != typeOf(c):
		return fails("WrongType")
	case readsOnly(c) && w.readOnly != nil && !*w.readOnly:
		return fails("ReadOnlyVolume")
	case c.DeletionTimestamp != nil:
		return fmt.Errorf("claim %s is being deleted, and %v still keeps it; see 'volplane why pvc/%s -n %s'", c.Name,
			c.Finalizers, c.Name, c.Namespace)
	}
	return nil
}

func (d *Door) newClaim(w request) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: d.Namespace, Name: w.name, Labels: map[string]string{volume.LabelMadeBy: managedBy},
		},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{
				corev1.ResourceStorage: *resource.NewQuantity(w.size, resource.BinarySI),
			}},
		},
	}
	if w.template != "" {
		c.Spec.StorageClassName = &w.template
	}
	if w.kind == device {
		c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock)
	}
	return c
}

func typeOf(c *corev1.PersistentVolumeClaim) string {
	if cluster.IsBlock(c.Spec.VolumeMode) {
		return device
	}
	return directory
}

// readsOnly says whether a claim can only be read.
func readsOnly(c *corev1.PersistentVolumeClaim) bool {
	return !slices.ContainsFunc(c.Spec.AccessModes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m != corev1.ReadOnlyMany
	})
}

// podName returns the name of the Pod of a claim on a node. What is mounted to be read only has one of its own.
func podName(claim, node string, readOnly bool) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%t", claim, node, readOnly))
	return "storage-" + hex.EncodeToString(sum[:5])
}
