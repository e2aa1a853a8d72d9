package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Translation returns the CSI source that represents a volume of another kind, or nil. Both functions are pure and are
// only called for volumes without a CSI source.
type Translation struct {
	Volume func(*corev1.PersistentVolume) *corev1.CSIPersistentVolumeSource
	Inline func(*corev1.Volume) *corev1.CSIVolumeSource
}

// Translated returns a client that adds to volumes of another kind the CSI source that represents them. Caches made
// from the client show it, too. The API server never sees the CSI source: writes leave it out.
func Translated(client kubernetes.Interface, t Translation) kubernetes.Interface {
	return &translated{client, t}
}

// Show adds the translated CSI sources to a volume or a Pod. It may be repeated.
func (t Translation) Show(o any) {
	switch o := o.(type) {
	case *corev1.PersistentVolume:
		if o != nil && o.Spec.CSI == nil {
			o.Spec.CSI = t.Volume(o)
		}
	case *corev1.Pod:
		if o == nil {
			return
		}
		for i := range o.Spec.Volumes {
			if v := &o.Spec.Volumes[i]; v.CSI == nil {
				v.CSI = t.Inline(v)
			}
		}
	}
}

// plain returns the volume as the API server knows it, without a CSI source that Show has added.
// The server allows one source only, so if the other source has a translation, Show has added this
// one.
func (t Translation) plain(v *corev1.PersistentVolume) *corev1.PersistentVolume {
	if v == nil || v.Spec.CSI == nil {
		return v
	}
	plain := *v
	plain.Spec.CSI = nil
	if t.Volume(&plain) == nil {
		return v
	}
	return &plain
}

type translated struct {
	kubernetes.Interface
	Translation
}

// trimmerOf returns the function that prepares objects for caches, and the client that fills caches. That client does
// not translate: the trimmer does.
func trimmerOf(client kubernetes.Interface) (*Trimmer, kubernetes.Interface) {
	if t, ok := client.(*translated); ok {
		return &Trimmer{show: t.Show}, t.Interface
	}
	return &Trimmer{}, client
}

// CoreV1 returns the client of the group that volumes and Pods are in.
func (c *translated) CoreV1() corev1client.CoreV1Interface {
	return translatedCore{c.Interface.CoreV1(), c.Translation}
}

type translatedCore struct {
	corev1client.CoreV1Interface
	Translation
}

// PersistentVolumes returns the client of volumes.
func (c translatedCore) PersistentVolumes() corev1client.PersistentVolumeInterface {
	return translatedVolumes{c.CoreV1Interface.PersistentVolumes(), c.Translation}
}

// Pods returns the client of Pods. Only Patch and List translate: no component uses another method
// that returns a Pod.
func (c translatedCore) Pods(namespace string) corev1client.PodInterface {
	return translatedPods{c.CoreV1Interface.Pods(namespace), c.Translation}
}

type translatedVolumes struct {
	corev1client.PersistentVolumeInterface
	Translation
}

func (c translatedVolumes) shown(v *corev1.PersistentVolume, err error) (*corev1.PersistentVolume, error) {
	if err == nil {
		c.Show(v)
	}
	return v, err
}

// Create writes the volume without its translated source.
func (c translatedVolumes) Create(
	ctx context.Context, v *corev1.PersistentVolume, o metav1.CreateOptions,
) (*corev1.PersistentVolume, error) {
	return c.shown(c.PersistentVolumeInterface.Create(ctx, c.plain(v), o))
}

// Update writes the volume without its translated source.
func (c translatedVolumes) Update(
	ctx context.Context, v *corev1.PersistentVolume, o metav1.UpdateOptions,
) (*corev1.PersistentVolume, error) {
	return c.shown(c.PersistentVolumeInterface.Update(ctx, c.plain(v), o))
}

// UpdateStatus writes the volume's status.
func (c translatedVolumes) UpdateStatus(
	ctx context.Context, v *corev1.PersistentVolume, o metav1.UpdateOptions,
) (*corev1.PersistentVolume, error) {
	return c.shown(c.PersistentVolumeInterface.UpdateStatus(ctx, c.plain(v), o))
}

// Patch writes what the patch says.
func (c translatedVolumes) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, sub ...string,
) (*corev1.PersistentVolume, error) {
	return c.shown(c.PersistentVolumeInterface.Patch(ctx, name, kind, data, o, sub...))
}

// Get reads one volume.
func (c translatedVolumes) Get(
	ctx context.Context, name string, o metav1.GetOptions,
) (*corev1.PersistentVolume, error) {
	return c.shown(c.PersistentVolumeInterface.Get(ctx, name, o))
}

// List reads volumes.
func (c translatedVolumes) List(ctx context.Context, o metav1.ListOptions) (*corev1.PersistentVolumeList, error) {
	list, err := c.PersistentVolumeInterface.List(ctx, o)
	if err == nil {
		for i := range list.Items {
			c.Show(&list.Items[i])
		}
	}
	return list, err
}

type translatedPods struct {
	corev1client.PodInterface
	Translation
}

// Patch writes what the patch says.
func (c translatedPods) Patch(
	ctx context.Context, name string, kind types.PatchType, data []byte, o metav1.PatchOptions, sub ...string,
) (*corev1.Pod, error) {
	pod, err := c.PodInterface.Patch(ctx, name, kind, data, o, sub...)
	if err == nil {
		c.Show(pod)
	}
	return pod, err
}

// List reads Pods.
func (c translatedPods) List(ctx context.Context, o metav1.ListOptions) (*corev1.PodList, error) {
	list, err := c.PodInterface.List(ctx, o)
	if err == nil {
		for i := range list.Items {
			c.Show(&list.Items[i])
		}
	}
	return list, err
}
