package up

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	groupv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumegroupsnapshot/v1"
	snapshotv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"volplane.dev/volplane/internal/app"
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/volume"
)

// ensureBundled creates the objects of the bundled driver if they do not exist. It
// keeps the changes of users; a deleted object is created again at the next start.
func ensureBundled(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.StorageV1().CSIDrivers().Create(ctx, bundledDriver(), metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = placeBundled(ctx, client)
	}
	if err != nil {
		return fmt.Errorf("create CSIDriver %s: %w", volume.LocalDriver, err)
	}
	if _, err := client.StorageV1().StorageClasses().Create(ctx, bundledClass(), metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create StorageClass %s: %w", volume.DefaultClass, err)
	}
	return nil
}

// placeBundled makes each host call its own instance of the bundled driver, unless a user has decided otherwise.
// Earlier versions created the object without an annotation for that.
func placeBundled(ctx context.Context, client kubernetes.Interface) error {
	d, err := client.StorageV1().CSIDrivers().Get(ctx, volume.LocalDriver, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if _, said := d.Annotations[volume.AnnControllers]; said {
		return nil
	}
	metav1.SetMetaDataAnnotation(&d.ObjectMeta, volume.AnnControllers, volume.ControllersOnNodes)
	_, err = client.StorageV1().CSIDrivers().Update(ctx, d, metav1.UpdateOptions{})
	return err
}

// ensureSnapshotClasses creates the VolumeSnapshotClass and the VolumeGroupSnapshotClass of the bundled driver if they
// do not exist. It tries until the server serves custom resources, which is a moment after it is ready, or until ctx
// ends.
func ensureSnapshotClasses(ctx context.Context, client kubernetes.Interface) {
	ensureCustom(ctx, client, bundledSnapshotClass(), volume.GroupSnapshot, volume.ResourceSnapshotClasses)
	ensureCustom(ctx, client, bundledGroupClass(), volume.GroupGroupSnapshot, volume.ResourceGroupClasses)
}

func ensureCustom(ctx context.Context, client kubernetes.Interface, object any, group, resource string) {
	_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		body, err := json.Marshal(object)
		if err != nil {
			return false, err
		}
		err = client.Discovery().RESTClient().Post().AbsPath("apis", group, "v1", resource).
			SetHeader("Content-Type", "application/json").Body(body).Do(ctx).Error()
		return err == nil || apierrors.IsAlreadyExists(err), nil
	})
}

func bundledSnapshotClass() *snapshotv1.VolumeSnapshotClass {
	return &snapshotv1.VolumeSnapshotClass{
		TypeMeta: metav1.TypeMeta{APIVersion: snapshotv1.SchemeGroupVersion.String(), Kind: "VolumeSnapshotClass"},
		ObjectMeta: metav1.ObjectMeta{
			Name: volume.DefaultClass, Annotations: map[string]string{volume.AnnDefaultSnapshotClass: "true"},
		},
		Driver:         volume.LocalDriver,
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
}

func bundledGroupClass() *groupv1.VolumeGroupSnapshotClass {
	return &groupv1.VolumeGroupSnapshotClass{
		TypeMeta: metav1.TypeMeta{APIVersion: groupv1.SchemeGroupVersion.String(), Kind: "VolumeGroupSnapshotClass"},
		ObjectMeta: metav1.ObjectMeta{
			Name: volume.DefaultClass, Annotations: map[string]string{volume.AnnDefaultGroupClass: "true"},
		},
		Driver:         volume.LocalDriver,
		DeletionPolicy: snapshotv1.VolumeSnapshotContentDelete,
	}
}

func bundledDriver() *storagev1.CSIDriver {
	return &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{
			Name: volume.LocalDriver, Annotations: map[string]string{volume.AnnControllers: volume.ControllersOnNodes},
		},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired:       ptr.To(true),
			PodInfoOnMount:       ptr.To(false),
			StorageCapacity:      ptr.To(true),
			FSGroupPolicy:        ptr.To(storagev1.FileFSGroupPolicy),
			SELinuxMount:         ptr.To(true),
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		},
	}
}

// bundledClass binds late, because with several nodes the Pod decides where the volume must be reachable.
func bundledClass() *storagev1.StorageClass {
	return &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{
			Name: volume.DefaultClass, Annotations: map[string]string{volume.AnnDefaultClass: "true"},
		},
		Provisioner:          volume.LocalDriver,
		ReclaimPolicy:        ptr.To(corev1.PersistentVolumeReclaimDelete),
		AllowVolumeExpansion: ptr.To(true),
		VolumeBindingMode:    ptr.To(storagev1.VolumeBindingWaitForFirstConsumer),
	}
}

// Door configures the volume plugin of docker and podman, or the storage provider of systemd.
type Door struct {
	// Socket is its path; empty means the one that systemd passes, if any.
	Socket string
	// Namespace has the claims that are the volumes behind it.
	Namespace string
}

// doors returns the parts that serve claims outside of Kubernetes, if they are enabled. Their sockets exist before the
// control plane is ready, for programs that are ordered after it.
func (o Options) doors(ctx context.Context, config *rest.Config, plane *app.Plane) ([]lifecycle.Part, error) {
	with := func(d Door, grace time.Duration) *options.DoorOptions {
		return &options.DoorOptions{
			Socket: d.Socket, Config: config, Namespace: d.Namespace, Node: o.Node, Grace: grace, Version: o.Version,
			Transform: plane.Transform, Log: o.Log,
		}
	}
	return app.Doors(ctx, with(o.Docker, options.DockerGrace), with(o.Storage, options.StorageGrace))
}

func (o Options) pluginDir() string {
	return cmp.Or(o.PluginDir, filepath.Join(o.DataDir, "volumeplugins"))
}

// flex serves the FlexVolume drivers of this host. An error is only logged, because the other parts should keep
// running.
func (o Options) flex(ctx context.Context, admin kubernetes.Interface) error {
	err := os.ErrPermission
	if os.Geteuid() == 0 {
		err = flex.Bridge(ctx, flex.BridgeOptions{
			Node: o.Node, PluginDir: o.pluginDir(), RootDir: flex.Root(o.DataDir),
			SocketDir:   filepath.Join(o.nodeRoot(), "plugins"),
			RegistryDir: filepath.Join(o.nodeRoot(), "plugins_registry"), ConfigFile: o.FlexConfig, Client: admin,
			Objects: true, Log: o.Log,
		})
	}
	if err != nil && ctx.Err() == nil {
		o.Log.Error("FlexVolume drivers are not served", "err", err)
	}
	<-ctx.Done()
	return nil
}
