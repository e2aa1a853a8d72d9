package hostile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	standalone "volplane.dev/volplane/test/internal/plane"
)

// life is a namespace with a driver of its own, and what users do there.
type life struct {
	name   string
	seed   uint64
	dice   *rand.Rand
	client kubernetes.Interface
	driver *driver

	claims []*claim
	pods   int
	// loose are the living Pods that bring their volume themselves.
	loose []string
	// kept are the volume objects by what became of their policy: true is to
	// be kept, false may go.
	kept  map[string]bool
	diary []string
}

// claim is a claim with the Pods that use it.
type claim struct {
	name              string
	many, keeps, gone bool
	block             bool
	// size is the requested size in MiB.
	size int64
	// early says that it was deleted before it had a volume: no Pod of it, which
	// keeps it from going, need ever get one.
	early  bool
	pods   []string
	onNode string
}

func newLife(name string, seed uint64, client kubernetes.Interface, d *driver) *life {
	return &life{
		name: name, seed: seed, dice: rand.New(rand.NewPCG(seed, 1)), client: client, driver: d, kept: map[string]bool{},
	}
}

func (l *life) note(format string, args ...any) {
	l.diary = append(l.diary, time.Now().Format("05.000 ")+fmt.Sprintf(format, args...))
}

// prepare creates the objects that a life needs.
func (l *life) prepare(ctx context.Context) error {
	meta := metav1.ObjectMeta{Name: l.name}
	_, err := l.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{})
	_, e := l.client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: l.driver.name},
		Spec: storagev1.CSIDriverSpec{
			PodInfoOnMount: ptr.To(true), StorageCapacity: &l.driver.counts,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{
				storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral,
			},
		},
	}, metav1.CreateOptions{})
	err = errors.Join(err, e)
	for _, of := range purposes() {
		secret := fmt.Sprintf("%016x+/&%016x=%08x", l.dice.Uint64(), l.dice.Uint64(), l.dice.Uint32())
		_, e := l.client.CoreV1().Secrets(l.name).Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: of}, StringData: map[string]string{"key": secret}},
			metav1.CreateOptions{})
		err = errors.Join(err, e)
	}
	return errors.Join(err, l.classes(ctx))
}

// purposes returns the purposes that have a Secret each.
func purposes() []string {
	return []string{"provisioner", "controller-publish", "controller-expand", "node-stage", "node-publish", "node-expand"}
}

func (l *life) classes(ctx context.Context) error {
	parameters := map[string]string{}
	for _, of := range purposes() {
		parameters["csi.storage.k8s.io/"+of+"-secret-name"] = of
		parameters["csi.storage.k8s.io/"+of+"-secret-namespace"] = l.name
	}
	var err error
	for _, mode := range []storagev1.VolumeBindingMode{
		storagev1.VolumeBindingImmediate, storagev1.VolumeBindingWaitForFirstConsumer,
	} {
		for _, policy := range []corev1.PersistentVolumeReclaimPolicy{
			corev1.PersistentVolumeReclaimDelete, corev1.PersistentVolumeReclaimRetain,
		} {
			_, e := l.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
				ObjectMeta: metav1.ObjectMeta{Name: l.class(mode, policy)}, Provisioner: l.driver.name, VolumeBindingMode: &mode,
				ReclaimPolicy: &policy, Parameters: parameters,
				AllowVolumeExpansion: ptr.To(true),
			}, metav1.CreateOptions{})
			err = errors.Join(err, e)
		}
	}
	return err
}

func (l *life) class(mode storagev1.VolumeBindingMode, policy corev1.PersistentVolumeReclaimPolicy) string {
	name := l.name + "-now"
	if mode == storagev1.VolumeBindingWaitForFirstConsumer {
		name = l.name + "-late"
	}
	if policy == corev1.PersistentVolumeReclaimRetain {
		name += "-keep"
	}
	return name
}

// play does what is drawn.
func (l *life) play(ctx context.Context) error {
	acts := []func(context.Context) error{
		l.makeClaim, l.makeClaim, l.makePod, l.makePod, l.makePod, l.removePod, l.removePod, l.removeClaim, l.turnPolicy,
		l.growClaim, l.makeLoose, l.giveUp,
	}
	for range 8 + l.dice.IntN(12) {
		err := acts[l.dice.IntN(len(acts))](ctx)
		if err != nil {
			return err
		}
		pause(ctx, time.Duration(l.dice.IntN(500))*time.Millisecond)
	}
	if l.dice.IntN(2) == 0 {
		return nil
	}
	return l.giveUp(ctx)
}

func (l *life) makeClaim(ctx context.Context) error {
	if len(l.claims) == 4 {
		return nil
	}
	c := &claim{
		name: fmt.Sprint("c", len(l.claims)), many: l.dice.IntN(4) == 0, keeps: l.dice.IntN(3) == 0,
		block: l.dice.IntN(4) == 0, size: 1,
	}
	mode, policy, access, form := storagev1.VolumeBindingImmediate, corev1.PersistentVolumeReclaimDelete,
		corev1.ReadWriteOnce, corev1.PersistentVolumeFilesystem
	if l.dice.IntN(2) == 0 {
		mode = storagev1.VolumeBindingWaitForFirstConsumer
	}
	if c.keeps {
		policy = corev1.PersistentVolumeReclaimRetain
	}
	if c.many {
		access = corev1.ReadWriteMany
	}
	if c.block {
		form = corev1.PersistentVolumeBlock
	}
	l.claims = append(l.claims, c)
	l.note("claim %s of class %s, %s, %s", c.name, l.class(mode, policy), access, form)
	_, err := l.client.CoreV1().PersistentVolumeClaims(l.name).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: c.name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: ptr.To(l.class(mode, policy)), AccessModes: []corev1.PersistentVolumeAccessMode{access},
			VolumeMode: &form,
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(c.size<<20, resource.BinarySI)},
			},
		},
	}, metav1.CreateOptions{})
	return err
}

// any returns a random claim that fits.
func (l *life) any(fits func(*claim) bool) *claim {
	var all []*claim
	for _, c := range l.claims {
		if fits(c) {
			all = append(all, c)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[l.dice.IntN(len(all))]
}

// makePod creates a Pod on a node where the claim's volume may be at the same time.
func (l *life) makePod(ctx context.Context) error {
	c := l.any(func(c *claim) bool { return !c.gone && len(c.pods) < 3 })
	if c == nil {
		return l.makeClaim(ctx)
	}
	if c.many || len(c.pods) == 0 {
		c.onNode = nodes()[l.dice.IntN(len(nodes()))]
	}
	name, uses := l.nextPod(c.onNode), corev1.Container{}
	c.pods = append(c.pods, name)
	if c.block {
		uses.VolumeDevices = []corev1.VolumeDevice{{Name: "v", DevicePath: "/dev/v"}}
	}
	l.note("pod %s with %s", name, c.name)
	return l.create(ctx, name, c.onNode, uses, corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: c.name},
	})
}

// makeLoose creates a Pod with an inline volume.
func (l *life) makeLoose(ctx context.Context) error {
	if len(l.loose) == 2 {
		return nil
	}
	node := nodes()[l.dice.IntN(len(nodes()))]
	name := l.nextPod(node)
	l.loose = append(l.loose, name)
	l.note("pod %s with a volume of its own", name)
	return l.create(ctx, name, node, corev1.Container{}, corev1.VolumeSource{
		CSI: &corev1.CSIVolumeSource{
			Driver: l.driver.name, NodePublishSecretRef: &corev1.LocalObjectReference{Name: "node-publish"},
		},
	})
}

func (l *life) nextPod(node string) string {
	name := fmt.Sprint("p", l.pods)
	l.pods++
	l.note("pod %s on %s", name, node)
	return name
}

func (l *life) create(ctx context.Context, name, node string, uses corev1.Container, source corev1.VolumeSource) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
	uses.Name, uses.Image = "none", "none"
	pod.Spec.NodeName, pod.Spec.Containers = node, []corev1.Container{uses}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
	_, err := l.client.CoreV1().Pods(l.name).Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func (l *life) removePod(ctx context.Context) error {
	all := slices.Clone(l.loose)
	for _, c := range l.claims {
		all = append(all, c.pods...)
	}
	if len(all) == 0 {
		return nil
	}
	return l.deletePod(ctx, all[l.dice.IntN(len(all))])
}

// giveUp deletes the Pods that have no volume yet. What a driver has begun for them must be undone while
// the driver still returns errors.
func (l *life) giveUp(ctx context.Context) error {
	pods, err := l.client.CoreV1().Pods(l.name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if told, _ := standalone.Mounted(p); !told && p.DeletionTimestamp == nil {
			err = errors.Join(err, l.deletePod(ctx, p.Name))
		}
	}
	return err
}

func (l *life) deletePod(ctx context.Context, name string) error {
	options, isIt := metav1.DeleteOptions{}, func(p string) bool { return p == name }
	for _, c := range l.claims {
		c.pods = slices.DeleteFunc(c.pods, isIt)
	}
	l.loose = slices.DeleteFunc(l.loose, isIt)
	if l.dice.IntN(3) == 0 {
		options.GracePeriodSeconds = ptr.To[int64](0)
	}
	l.note("delete pod %s, at once: %v", name, options.GracePeriodSeconds != nil)
	return l.client.CoreV1().Pods(l.name).Delete(ctx, name, options)
}

// growClaim requests more capacity.
func (l *life) growClaim(ctx context.Context) error {
	c := l.any(func(c *claim) bool { return !c.gone })
	if c == nil || !l.driver.grows {
		return nil
	}
	o, err := l.client.CoreV1().PersistentVolumeClaims(l.name).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil || o.Status.Phase != corev1.ClaimBound {
		return err
	}
	c.size++
	l.note("claim %s asks for %d Mi", c.name, c.size)
	patch := fmt.Appendf(nil, `{"spec":{"resources":{"requests":{"storage":"%dMi"}}}}`, c.size)
	_, err = l.client.CoreV1().PersistentVolumeClaims(l.name).Patch(ctx, c.name, types.MergePatchType, patch,
		metav1.PatchOptions{})
	return err
}

func (l *life) removeClaim(ctx context.Context) error {
	c := l.any(func(c *claim) bool { return !c.gone })
	if c == nil {
		return nil
	}
	o, err := l.client.CoreV1().PersistentVolumeClaims(l.name).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if _, known := l.kept[o.Spec.VolumeName]; o.Status.Phase == corev1.ClaimBound && !known {
		l.kept[o.Spec.VolumeName] = c.keeps
	}
	c.gone, c.early = true, o.Status.Phase != corev1.ClaimBound
	l.note("delete claim %s, its volume is %q", c.name, o.Spec.VolumeName)
	return l.client.CoreV1().PersistentVolumeClaims(l.name).Delete(ctx, c.name, metav1.DeleteOptions{})
}

// turnPolicy changes a volume's reclaim policy to the other one.
func (l *life) turnPolicy(ctx context.Context) error {
	c := l.any(func(c *claim) bool { return !c.gone })
	if c == nil {
		return nil
	}
	o, err := l.client.CoreV1().PersistentVolumeClaims(l.name).Get(ctx, c.name, metav1.GetOptions{})
	if err != nil || o.Status.Phase != corev1.ClaimBound {
		return err
	}
	c.keeps = !c.keeps
	l.kept[o.Spec.VolumeName] = c.keeps
	return setPolicy(ctx, l.client, o.Spec.VolumeName, c.keeps, l.note)
}

func setPolicy(
	ctx context.Context, client kubernetes.Interface, volume string, keep bool, note func(string, ...any),
) error {
	policy := corev1.PersistentVolumeReclaimDelete
	if keep {
		policy = corev1.PersistentVolumeReclaimRetain
	}
	note("volume %s: %s", volume, policy)
	patch := fmt.Appendf(nil, `{"spec":{"persistentVolumeReclaimPolicy":%q}}`, policy)
	_, err := client.CoreV1().PersistentVolumes().Patch(ctx, volume, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// finish deletes all objects of the life.
func (l *life) finish(ctx context.Context, seen *snapshot) error {
	l.note("the end")
	var err error
	for name := range l.kept {
		l.kept[name] = false
	}
	for _, v := range seen.volumes {
		if v.Spec.CSI.Driver == l.driver.name {
			err = errors.Join(err, setPolicy(ctx, l.client, v.Name, false, l.note))
		}
	}
	err = errors.Join(err, l.client.CoreV1().Pods(l.name).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{}))
	for _, c := range l.claims {
		e := l.client.CoreV1().PersistentVolumeClaims(l.name).Delete(ctx, c.name, metav1.DeleteOptions{})
		if !apierrors.IsNotFound(e) {
			err = errors.Join(err, e)
		}
		c.gone, c.pods = true, nil
	}
	l.loose = nil
	return err
}
