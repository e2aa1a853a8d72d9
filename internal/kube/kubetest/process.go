package kubetest

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"volplane.dev/volplane/internal/kube"
)

// soon is longer than a controller needs for what it does at once.
const soon = time.Second

// Process is what one life of a controller has, in a bubble of synctest.
type Process struct {
	Client *fake.Clientset
	Caches *kube.Caches
	Events *kube.Recorder

	t      testing.TB
	ctx    context.Context
	cancel context.CancelFunc
	ended  chan error
}

// Begin returns a process that has the rights, and no caches yet.
func (s *Server) Begin(t testing.TB, name string, rights []kube.Access) *Process {
	p := &Process{Client: s.client(t, rights), t: t, ended: make(chan error, 1)}
	p.ctx, p.cancel = context.WithCancel(t.Context())
	p.Caches, p.Events = kube.NewCaches(p.Client), kube.NewRecorder(p.ctx, p.Client, name)
	return p
}

// Run fills the caches, and has a controller run until Stop.
func (p *Process) Run(controller func(context.Context) error) {
	p.t.Helper()
	late := time.AfterFunc(time.Minute, p.cancel)
	if err := p.Caches.Start(p.ctx); err != nil {
		p.t.Fatal(err)
	}
	late.Stop()
	go func() { p.ended <- controller(p.ctx) }()
	Pass(soon)
}

// Stop returns when all has ended.
func (p *Process) Stop() {
	p.t.Helper()
	p.cancel()
	if err := <-p.ended; err != nil {
		p.t.Error(err)
	}
	synctest.Wait()
}

// Pass lets time pass, which only the clock of a bubble does, and all rest.
func Pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Objects is the client of one kind of objects.
type Objects[T any] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Update(ctx context.Context, o T, u metav1.UpdateOptions) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// Change has somebody change an object, and all others hear of it.
func Change[T any](t testing.TB, of Objects[T], name string, f func(T)) {
	t.Helper()
	Quietly(t, of, name, f)
	Pass(soon)
}

// Quietly has somebody change an object in the middle of something else.
func Quietly[T any](t testing.TB, of Objects[T], name string, f func(T)) {
	t.Helper()
	o, err := of.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	f(o)
	if _, err := of.Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
}

// Remove has somebody delete an object, for which no node is asked, and all others
// hear of it.
func Remove[T any](t testing.TB, of Objects[T], name string) {
	t.Helper()
	var now int64
	if err := of.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	Pass(soon)
}
