package app

import (
	"volplane.dev/volplane/internal/flex"
	"volplane.dev/volplane/internal/kube"
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
