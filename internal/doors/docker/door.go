package docker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	// managedBy is the label of what docker has made.
	managedBy = "volplane-docker"
	// annName on a claim is the name of the volume.
	annName = "volplane.dev/docker-name"
	// annRetain on a claim has `docker volume rm` keep it; annHidden says that this has happened.
	annRetain = "volplane.dev/docker-retain"
	annHidden = "volplane.dev/docker-hidden"
	// annReferences on a Pod are the containers that use the volume, see volumeusers.References.
	annReferences = "volplane.dev/docker-references"
	// annShown on a Pod are the mounts that were reported to engines, see package users.
	annShown = "volplane.dev/docker-shown"
	// SocketName is the name of the socket that systemd hands over.
	SocketName = "docker"
)

// Rights returns the rights that a door needs in its namespace.
func Rights() []kube.Access {
	return append(kube.Read("", "pods", "persistentvolumeclaims", "nodes"),
		kube.Write("", "pods", "create", "patch", "delete"),
		kube.Write("", "persistentvolumeclaims", "create", "patch", "delete"))
}

// Door serves the claims of a namespace to the container engines of this host.
type Door struct {
	options.DoorOptions
	client kubernetes.Interface
	caches *kube.Caches
	claims kube.Writer[*corev1.PersistentVolumeClaim]
	pods   kube.Writer[*corev1.Pod]
	log    *slog.Logger
	// ready is closed when the caches are filled.
	ready   chan struct{}
	changed *kube.Signal
	users   *users.Users
	// empty makes a new filesystem look empty, see emptyNew.
	empty func(path string) error
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
	client, err := kubernetes.NewForConfig(kube.Restrict(o.Config, "docker", Rights()))
	if err != nil {
		return nil, fmt.Errorf("client of docker: %w", err)
	}
	boot, err := durable.Boot()
	if err != nil {
		return nil, err
	}
	return newDoor(o, client, users.Kernel{
		Mounted: func(path string) (mount.Point, bool) {
			p, mounted, err := mount.At(path)
			return p, mounted && err == nil
		},
		Copies: func(ctx context.Context, ours func(path string) bool) (func(mount.Point) bool, error) {
			copies, err := mount.FindCopies(ctx, ours)
			return copies.Of, err
		},
		Now: time.Now, Boot: boot,
	}, emptyNew), nil
}

func newDoor(
	o options.DoorOptions, client kubernetes.Interface, k users.Kernel, empty func(path string) error,
) *Door {
	caches, changed := kube.NewNamespaceCaches(client, o.Namespace, o.Node, o.Transform), &kube.Signal{}
	d := &Door{
		DoorOptions: o, client: client, caches: caches, claims: caches.WriteClaims(client), pods: caches.WritePods(client),
		log: o.Log, ready: make(chan struct{}), changed: changed, empty: empty,
	}
	d.users = &users.Users{
		Door: "docker", ManagedBy: managedBy, References: annReferences, Shown: annShown, Namespace: o.Namespace,
		Node: o.Node, Grace: o.Grace, Pods: d.pods, Kernel: k, Why: o.Why, Log: o.Log, Changed: changed,
		Look: make(chan struct{}, 1),
	}
	d.claims.Watch(func(_, _ *corev1.PersistentVolumeClaim) { changed.Send() })
	d.pods.Watch(func(_, _ *corev1.Pod) { changed.Send() })
	return d
}

// Listen returns the socket that systemd has created, or else creates one at a path, and returns nil if there is
// no path either. Calls that come before Run wait.
func Listen(ctx context.Context, path string) (net.Listener, error) {
	if l, err := socket.Inherited(SocketName); l != nil || err != nil || path == "" {
		return l, err
	}
	l, err := socket.Listen(ctx, path)
	if err != nil {
		return nil, err
	}
	// An engine that finds no socket fails immediately, but waits if no process answers. So the socket stays for the next
	// start.
	l.SetUnlinkOnClose(false)
	return l, nil
}

// Run serves a socket until ctx ends, and closes it.
func (d *Door) Run(ctx context.Context, l net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	work.Go(func() { d.users.Open(ctx, d.caches, d.ready) })
	defer work.Wait()
	defer stop()
	d.log.Info("docker's volumes are served", "socket", l.Addr(), "namespace", d.Namespace, "node", d.Node)
	return d.serveHTTP(ctx, l)
}

// activate answers that this plugin serves volumes. An engine calls it at its start, podman before each call.
func (d *Door) activate(context.Context, request) (answer, error) {
	d.users.LookSoon()
	return answer{Implements: []string{"VolumeDriver"}}, nil
}
