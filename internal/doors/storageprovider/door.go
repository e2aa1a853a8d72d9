package storageprovider

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"

	"volplane.dev/volplane/internal/doors/users"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/mount"
	"volplane.dev/volplane/internal/process/options"
	"volplane.dev/volplane/internal/process/socket"
)

const (
	// managedBy is the label of what was made for systemd.
	managedBy = "volplane-storage"
	// annAcquired and annShown on a Pod say when its volume was last acquired, and which mounts were handed out; see
	// package users.
	annAcquired = "volplane.dev/storage-acquired"
	annShown    = "volplane.dev/storage-shown"
	// SocketName is the name of the socket that systemd hands over.
	SocketName = "storage"
	// lookPause is the least interval between two looks after unmounts.
	lookPause = 5 * time.Second
)

// Rights returns the rights that a door needs.
func Rights() []kube.Access {
	return append(append(kube.Read("", "pods", "persistentvolumeclaims"),
		kube.Read("storage.k8s.io", "storageclasses")...),
		kube.Write("", "pods", "create", "patch", "delete"), kube.Write("", "persistentvolumeclaims", "create"))
}

// Door serves the claims of a namespace to systemd.
type Door struct {
	options.DoorOptions
	client kubernetes.Interface
	caches *kube.Caches
	claims kube.Writer[*corev1.PersistentVolumeClaim]
	users  *users.Users
	log    *slog.Logger
	// ready is closed when the caches are filled.
	ready chan struct{}
	// open opens what is mounted at a path, see openVolume.
	open func(path string, block, readOnly bool) (*os.File, bool, error)
}

// Open makes the socket, and returns what serves it until ctx ends; nil if the options name no socket and systemd has
// made none. Calls that come before it is served wait.
func Open(ctx context.Context, o options.DoorOptions) (func(context.Context) error, error) {
	l, err := Listen(ctx, o.Socket)
	if l == nil || err != nil {
		return nil, err
	}
	d, err := New(o)
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return func(ctx context.Context) error { return d.Run(ctx, l) }, nil
}

// New returns a door that Run opens.
func New(o options.DoorOptions) (*Door, error) {
	client, err := kubernetes.NewForConfig(kube.Restrict(o.Config, "storage", Rights()))
	if err != nil {
		return nil, fmt.Errorf("client of the storage provider: %w", err)
	}
	boot, err := durable.Boot()
	if err != nil {
		return nil, err
	}
	return newDoor(o, client, users.Kernel{Mounted: mounted, Copies: inUse, Now: time.Now, Boot: boot}, openVolume), nil
}

func newDoor(
	o options.DoorOptions, client kubernetes.Interface, k users.Kernel,
	open func(path string, block, readOnly bool) (*os.File, bool, error),
) *Door {
	caches, changed := kube.NewNamespaceCaches(client, o.Namespace, o.Node, o.Transform), &kube.Signal{}
	d := &Door{
		DoorOptions: o, client: client, caches: caches, claims: caches.WriteClaims(client), log: o.Log,
		ready: make(chan struct{}), open: open,
	}
	d.users = &users.Users{
		Door: "storage provider", ManagedBy: managedBy, References: annAcquired, Shown: annShown, Namespace: o.Namespace,
		Node: o.Node, Grace: o.Grace, Pods: caches.WritePods(client), Kernel: k, Why: o.Why, Log: o.Log, Changed: changed,
		Look: make(chan struct{}, 1),
	}
	d.claims.Watch(func(_, _ *corev1.PersistentVolumeClaim) { changed.Send() })
	d.users.Pods.Watch(func(_, _ *corev1.Pod) { changed.Send() })
	return d
}

// Listen returns the socket that systemd has created, or else creates one at a path, and returns nil if there is
// no path either. Calls that come before Run wait.
func Listen(ctx context.Context, path string) (*net.UnixListener, error) {
	inherited, err := socket.Inherited(SocketName)
	if err != nil {
		return nil, err
	}
	if inherited != nil {
		l, isUnix := inherited.(*net.UnixListener)
		if !isUnix {
			return nil, fmt.Errorf("the socket %s of systemd is not a unix socket", SocketName)
		}
		return l, nil
	}
	if path == "" {
		return nil, nil
	}
	// The directory is for all providers and their callers.
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // see above
		return nil, fmt.Errorf("create socket: %w", err)
	}
	return socket.Listen(ctx, path)
}

// Run serves a socket until ctx ends, and closes it.
func (d *Door) Run(ctx context.Context, l *net.UnixListener) error {
	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { d.users.Open(ctx, d.caches, d.ready) })
	work.Go(func() {
		if err := mount.Watch(ctx, lookPause, d.users.LookSoon); err != nil {
			d.log.Warn("storage provider: unused volumes are noticed later", "err", err)
		}
	})
	defer work.Wait()
	defer stop()
	d.log.Info("systemd's storage volumes are served", "socket", l.Addr(), "namespace", d.Namespace, "node", d.Node)
	return d.serve(ctx, l)
}
