package seal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// sealed is the prefix of everything that any provider has encrypted.
const sealed = "k8s:enc:"

// entry is a Secret as etcd has it.
type entry struct {
	key, name string
	// revision is the one that was read.
	revision int64
	// sealed names provider and key; err is why it cannot be read.
	sealed string
	err    error
}

// findings is the result of a scan; stale entries should be written again.
type findings struct{ stale, unreadable []entry }

// scan reads all Secrets. Without a transformer, encrypted ones are unreadable.
func (o Options) scan(ctx context.Context, how value.Transformer) (findings, error) {
	var f findings
	prefix := o.Prefix + "/secrets/"
	from, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	for {
		r, err := o.Etcd.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page))
		if err != nil {
			return f, fmt.Errorf("read Secrets in etcd: %w", err)
		}
		for _, kv := range r.Kvs {
			e := entry{
				key: string(kv.Key), name: strings.TrimPrefix(string(kv.Key), prefix), revision: kv.ModRevision,
				sealed: provider(kv.Value),
			}
			var stale bool
			if how != nil {
				_, stale, e.err = how.TransformFromStorage(ctx, kv.Value, value.DefaultContext(kv.Key))
			} else if e.sealed != "" {
				e.err = errNoKey
			}
			switch {
			case e.err != nil:
				f.unreadable = append(f.unreadable, e)
			case stale:
				f.stale = append(f.stale, e)
			}
		}
		if !r.More || len(r.Kvs) == 0 {
			return f, ctx.Err()
		}
		from = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

var errNoKey = errors.New("there is no key")

// provider returns the name of the provider and the key in a value, "" if it is in clear text.
func provider(stored []byte) string {
	const most = 120
	if !bytes.HasPrefix(stored, []byte(sealed)) {
		return ""
	}
	parts := strings.SplitN(string(stored[:min(len(stored), most)]), ":", 6)
	return strings.Join(parts[2:min(len(parts), 5)], " ")
}

// lost describes the unreadable Secrets.
func (f findings) lost() string {
	const most = 5
	var names []string
	for _, e := range f.unreadable[:min(len(f.unreadable), most)] {
		names = append(names, e.name)
	}
	if more := len(f.unreadable) - most; more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%d Secrets (%s) are encrypted with %q", len(f.unreadable), strings.Join(names, ", "),
		f.unreadable[0].sealed)
}

// rewrite encrypts one Secret.
func (o Options) rewrite(ctx context.Context, how value.Transformer, e entry) error {
	r, err := o.Etcd.Get(ctx, e.key)
	if err != nil || len(r.Kvs) == 0 {
		return err
	}
	about := value.DefaultContext(e.key)
	plain, _, err := how.TransformFromStorage(ctx, r.Kvs[0].Value, about)
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", e.name, err)
	}
	stored, err := how.TransformToStorage(ctx, plain, about)
	if err != nil {
		return fmt.Errorf("encrypt Secret %s: %w", e.name, err)
	}
	return o.replace(ctx, e, clientv3.OpPut(e.key, string(stored)))
}

// replace writes an entry, unless it has changed since it was read.
func (o Options) replace(ctx context.Context, e entry, op clientv3.Op) error {
	r, err := o.Etcd.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(e.key), "=", e.revision)).Then(op).Commit()
	if err != nil {
		return fmt.Errorf("write Secret %s: %w", e.name, err)
	}
	if !r.Succeeded {
		return fmt.Errorf("write Secret %s: another program has changed it", e.name)
	}
	return nil
}

// shrink drops all revisions but the last one, and the pages that they were on. It leaves an etcd that others run
// alone.
func (o Options) shrink(ctx context.Context) error {
	if o.Defragment == nil {
		return nil
	}
	r, err := o.Etcd.Get(ctx, o.Prefix, clientv3.WithCountOnly())
	if err != nil {
		return err
	}
	if _, err := o.Etcd.Compact(ctx, r.Header.Revision, clientv3.WithCompactPhysical()); err != nil &&
		!errors.Is(err, rpctypes.ErrCompacted) {
		return err
	}
	return o.Defragment()
}
