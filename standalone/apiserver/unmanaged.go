package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// unmanaged is a storage that leaves out the managed fields of objects that this process creates: they would be half of
// a volume, and only server-side apply reads them. Kubernetes does not record who writes to an object without them
// until something is applied to it, and then attributes all existing fields to "before-first-apply".
//
// Objects of users keep their managed fields. When kubectl changes from apply to server-side apply, it takes over all
// fields of the manager that wrote its annotation; those of "before-first-apply" would include what controllers wrote,
// such as the claimRef of a volume, and the next apply would remove it.
type unmanaged struct{ storage.Interface }

// Create stores a new object.
func (u unmanaged) Create(ctx context.Context, key string, o, out runtime.Object, ttl uint64) error {
	if own(ctx) {
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil)
		}
	}
	return u.Interface.Create(ctx, key, o, out, ttl)
}
