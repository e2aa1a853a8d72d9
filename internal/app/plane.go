package app

import (
	"context"

	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/parts"
	"volplane.dev/volplane/internal/program"
)

// Plane is what the parts of one process share that is a whole control plane: each object is in memory once, and
// claims and volumes are read from the API server once. A nil Plane shares nothing.
type Plane struct {
	trimmer *kube.Trimmer
	// caches are those of the controllers once lent is closed.
	caches *kube.Caches
	lent   chan struct{}
}

// NewPlane returns a Plane whose controllers will lend their caches.
func NewPlane() *Plane {
	return &Plane{trimmer: kube.NewTrimmer(flex.Translation()), lent: make(chan struct{})}
}

// Transform prepares the objects of the API server's own caches.
func (p *Plane) Transform(o any) (any, error) { return p.trimmer.Whole(o) }

// Node runs the node agent of this process until ctx ends, when the controllers have begun to read.
func (p *Plane) Node(ctx context.Context, o program.NodeOptions) error {
	return parts.After(p.lent, func(ctx context.Context) error { return runNode(ctx, o, p) })(ctx)
}

func (p *Plane) share(caches *kube.Caches) {
	if p != nil {
		caches.Share(p.trimmer)
	}
}

func (p *Plane) borrow(caches *kube.Caches) {
	if p != nil {
		caches.Borrow(p.caches)
	}
}

// lend lends caches that are about to start.
func (p *Plane) lend(caches *kube.Caches) {
	if p != nil {
		p.caches = caches.Lendable()
		close(p.lent)
	}
}
