package up

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"volplane.dev/volplane/standalone/apiserver"

	"volplane.dev/volplane/internal/process/lifecycle"
	"volplane.dev/volplane/internal/process/sdnotify"
)

// liveness says whether a control plane works.
type liveness struct {
	server *apiserver.Server
	// controllers is closed when they work, and mounted when the volumes of the Pods that existed before are mounted
	// again, or the time for that is over.
	controllers, mounted chan struct{}
	// agent says whether the node agent works; nil until it has restored the volumes of its Pods.
	agent atomic.Pointer[func(context.Context) error]
}

// restored is called by the node agent when its Pods have their volumes; from then on the agent's liveness counts, too.
func (l *liveness) restored(_ context.Context, works func(context.Context) error) {
	l.agent.Store(&works)
	close(l.mounted)
}

// works fails if the API server does not answer, or the node agent hangs.
func (l *liveness) works(ctx context.Context) error {
	if err := l.server.Answers(ctx); err != nil {
		return err
	}
	if agent := l.agent.Load(); agent != nil {
		return (*agent)(ctx)
	}
	return nil
}

// mountedLimit is how long the end of a start is delayed by a node agent that cannot begin: other services wait for it.
const mountedLimit = 90 * time.Second

// part returns the part that notifies the service manager that the start has ended, when it calls ready, and from then
// on that the control plane works.
func (l *liveness) part(n *sdnotify.Notifier, ready func(), log *slog.Logger) lifecycle.Part {
	return lifecycle.Part{Name: "service manager", Run: lifecycle.After(l.controllers, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-l.mounted:
		case <-time.After(mountedLimit):
			log.Warn("the node agent has not begun to work, and the start does not wait for it any longer")
		}
		ready()
		n.Notify(sdnotify.Ready)
		n.Watch(ctx, l.works, log)
		<-ctx.Done()
		return nil
	})}
}
