package kubetest

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"volplane.dev/volplane/internal/controller"
	"volplane.dev/volplane/internal/kube"
)

// soon is longer than a controller needs for what it does immediately.
const soon = time.Second

// Process is one life of a controller.
type Process struct {
	*controller.Controller
	// Client is the controller's own, which may do what it has declared.
	Client *fake.Clientset
	Caches *kube.Caches

	t testing.TB
	// end ends the life, and ended says that it has ended.
	end   context.CancelFunc
	ended sync.WaitGroup
	ctx   context.Context
}

// Begin returns a controller with the current objects. It does what the test calls, or works on its own from Work on,
// until Kill.
func (a *API) Begin(build func(controller.Env) *controller.Controller) *Process {
	a.t.Helper()
	p := &Process{t: a.t}
	p.Client = a.Client(func() []kube.Access { return p.Rights() })
	p.ctx, p.end = context.WithCancel(context.Background())
	// The events of the last workers are recorded, too.
	events, silence := context.WithCancel(context.Background())
	a.t.Cleanup(func() { p.Kill(); silence() })
	client := Customized(p.Client)
	p.Caches = kube.NewCaches(client)
	p.Controller = build(controller.Env{
		Client: client, Caches: p.Caches, Events: kube.NewRecorder(events, p.Client, "test"),
		Log: slog.New(slog.DiscardHandler),
	})
	late := time.AfterFunc(time.Minute, p.end)
	defer late.Stop()
	followed := p.follow()
	err := p.Caches.Start(p.ctx)
	if err == nil {
		err = p.Caches.WaitForOptional(p.ctx, p.Inputs)
	}
	if err != nil {
		a.t.Fatal(err)
	}
	followed()
	return p
}

// follow is called before caches start, and returns a function that waits until everything that they have listed is
// watched: the watches of this API do not report deletions in between.
func (p *Process) follow() (followed func()) {
	watched := make(chan string, 100)
	p.Client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		select {
		case watched <- a.GetResource().Resource:
		default: // followed does not wait any more
		}
		return false, nil, nil
	})
	return func() {
		waits := map[string]bool{}
		for _, a := range p.Client.Actions() {
			if a.GetVerb() == "list" {
				waits[a.GetResource().Resource] = true
			}
		}
		for len(waits) > 0 {
			delete(waits, <-watched)
		}
		// The last request has begun now, and is answered when the client is free.
		p.Client.Actions()
	}
}

// Work makes the controller work on its own.
func (p *Process) Work() {
	p.ended.Go(func() {
		if err := p.Run(p.ctx); err != nil {
			p.t.Error(err)
		}
	})
}

// Kill ends the life immediately, and returns when no worker runs any more. It may be
// repeated.
func (p *Process) Kill() {
	p.end()
	p.ended.Wait()
}

// Run makes a controller work on its own in a bubble until stop is called, and returns when it rests.
func (a *API) Run(build func(controller.Env) *controller.Controller) (c *controller.Controller, stop func()) {
	a.t.Helper()
	p := a.Begin(build)
	// It receives all objects that exist at the start together.
	synctest.Wait()
	p.Work()
	synctest.Wait()
	return p.Controller, func() {
		a.t.Helper()
		synctest.Wait()
		p.Kill()
	}
}

// Pass advances the clock of a bubble, and waits until all is at rest.
func Pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Objects is the client of one kind of objects.
type Objects[T runtime.Object] interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (T, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// Change makes a client change an object, with its status, and waits until all watches have reported it.
func Change[T runtime.Object](a *API, of Objects[T], name string, f func(T)) {
	a.t.Helper()
	Quietly(a, of, name, f)
	Pass(soon)
}

// Quietly makes a client change an object in the middle of another operation.
func Quietly[T runtime.Object](a *API, of Objects[T], name string, f func(T)) {
	a.t.Helper()
	o, err := of.Get(a.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		a.t.Error(err)
		return
	}
	f(o)
	a.Edit(o)
}

// Remove makes a client delete an object without a grace period for its node, and waits until all watches have reported
// it.
func Remove[T runtime.Object](a *API, of Objects[T], name string) {
	a.t.Helper()
	o, err := of.Get(a.t.Context(), name, metav1.GetOptions{})
	if err == nil {
		var now int64
		err = a.end(ResourceOf(o), o, metav1.DeleteOptions{GracePeriodSeconds: &now})
	}
	if err != nil {
		a.t.Fatal(err)
	}
	Pass(soon)
}
