package up

import (
	"context"
	"log/slog"
	"sync/atomic"

	"volplane.dev/volplane/standalone/apiserver"

	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/sdnotify"
)

// liveness says whether a control plane works.
type liveness struct {
	server *apiserver.Server
	// ready is closed when the start has ended.
	ready chan struct{}
	// agent says whether the node agent works; nil until it has restored the volumes of its Pods.
	agent atomic.Pointer[func(context.Context) error]
}

// restored is called by the node agent when its Pods have their volumes; from then on the agent has to work, too.
func (l *liveness) restored(_ context.Context, works func(context.Context) error) {
	l.agent.Store(&works)
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

// watchdog returns the part that tells the watchdog of the service manager that the control plane works.
func (l *liveness) watchdog(n *sdnotify.Notifier, log *slog.Logger) parts.Part {
	return parts.Part{Name: "watchdog", Run: parts.After(l.ready, func(ctx context.Context) error {
		n.Watch(ctx, l.works, log)
		<-ctx.Done()
		return nil
	})}
}
