package spare

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime"
)

const (
	// small is the size up to which objects do not count: no claim or Pod that users write is larger.
	small = 8 << 10
	// most is how many bytes the objects of a namespace may have beyond small, together: each costs several times as
	// much memory.
	most = 8 << 20
	// page is how many objects are read in one request.
	page = 500
	// pause is the delay before etcd is read again after an error.
	pause = time.Second
	// named is how many objects a refusal names.
	named = 3
)

// Bulk knows the large objects of each namespace as etcd stores them.
type Bulk struct {
	prefix string
	mu     sync.Mutex
	// beyond says, by namespace and key, how many bytes an object has beyond small.
	beyond map[string]map[string]int
}

// NewBulk returns an empty record of the objects below a prefix of etcd, which Follow fills.
func NewBulk(prefix string) *Bulk { return &Bulk{prefix: prefix + "/"} }

// Follow reads all objects, and then each change, until ctx ends.
func (b *Bulk) Follow(ctx context.Context, client *clientv3.Client) {
	for ctx.Err() == nil {
		if revision, err := b.load(ctx, client); err == nil {
			b.watch(ctx, client, revision+1)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// load reads all objects as of one revision, which it returns.
func (b *Bulk) load(ctx context.Context, client *clientv3.Client) (revision int64, err error) {
	b.mu.Lock()
	b.beyond = map[string]map[string]int{}
	b.mu.Unlock()
	for key, end := b.prefix, clientv3.GetPrefixRangeEnd(b.prefix); ; {
		got, err := client.Get(ctx, key, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision))
		if err != nil {
			return 0, fmt.Errorf("read sizes of objects: %w", err)
		}
		revision = cmp.Or(revision, got.Header.Revision)
		for _, kv := range got.Kvs {
			b.set(string(kv.Key), len(kv.Value))
		}
		if !got.More {
			return revision, nil
		}
		key = string(got.Kvs[len(got.Kvs)-1].Key) + "\x00"
	}
}

// watch follows changes from a revision on, until etcd does not have them any more.
func (b *Bulk) watch(ctx context.Context, client *clientv3.Client, from int64) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for got := range client.Watch(ctx, b.prefix, clientv3.WithPrefix(), clientv3.WithRev(from)) {
		if got.Err() != nil {
			return
		}
		for _, e := range got.Events {
			b.set(string(e.Kv.Key), len(e.Kv.Value)) // a deleted key has no value
		}
	}
}

// set notes the size of an object.
func (b *Bulk) set(key string, size int) {
	namespace := namespaceOf(strings.TrimPrefix(key, b.prefix))
	if namespace == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if size <= small {
		delete(b.beyond[namespace], key)
		return
	}
	if b.beyond[namespace] == nil {
		b.beyond[namespace] = map[string]int{}
	}
	b.beyond[namespace][key] = size - small
}

// namespaceOf returns the namespace of an object by its key, [GROUP/]RESOURCE/[NAMESPACE/]NAME. Only groups of custom
// resources are part of keys, and these have a dot in their names.
func namespaceOf(key string) string {
	parts := strings.Split(key, "/")
	if strings.Contains(parts[0], ".") {
		parts = parts[1:]
	}
	if len(parts) != 3 {
		return ""
	}
	return parts[1]
}

// refuse returns an error for a large object in a namespace that has reached its limit, unless the object gets smaller.
// The sizes of objects that etcd does not have yet are those of their JSON.
func (b *Bulk) refuse(namespace string, before, after runtime.Object) error {
	b.mu.Lock()
	sum, largest := 0, []string{}
	for key, bytes := range b.beyond[namespace] {
		sum += bytes
		largest = append(largest, key)
	}
	slices.SortFunc(largest, func(x, y string) int {
		return cmp.Or(b.beyond[namespace][y]-b.beyond[namespace][x], strings.Compare(x, y))
	})
	b.mu.Unlock()
	if sum < most {
		return nil
	}
	if size := sizeOf(after); size <= small || before != nil && size <= sizeOf(before) {
		return nil
	}
	for i, key := range largest {
		largest[i] = strings.Replace(strings.TrimPrefix(key, b.prefix), "/"+namespace+"/", "/", 1)
	}
	return fmt.Errorf("the large objects of namespace %s have %d KiB beyond %d KiB each, and %d KiB are allowed: delete "+
		"or shrink some, the largest are %s", namespace, sum>>10, small>>10, most>>10,
		strings.Join(largest[:min(named, len(largest))], ", "))
}

func sizeOf(o runtime.Object) int {
	body, err := json.Marshal(o)
	if err != nil {
		return 0
	}
	return len(body)
}
