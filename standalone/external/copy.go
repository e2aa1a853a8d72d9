package external

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

const (
	// page is how many keys are read in one request.
	page = 200
	// mostPuts and mostBytes limit one request to write; etcd accepts 128 and 1.5 MiB.
	mostPuts  = 100
	mostBytes = 1 << 20
	// shortLife is the life in seconds that keys get which had a limited one: events, which last for an hour.
	shortLife = 3600
)

// ErrBound is the error of a value that can be decrypted under its own key of etcd only.
var ErrBound = errors.New("encrypted for its place")

// Keys are the keys of a control plane in some etcd.
type Keys struct {
	Client *clientv3.Client
	// Prefix begins all of them, and does not end with a slash.
	Prefix string
}

// Keys returns those of the store.
func (s *Store) Keys() Keys { return Keys{s.client, s.options.Prefix} }

// Sum is the common part of two copies: all keys except those with a lease, which may expire in one of them before the
// other is read.
type Sum struct {
	Keys int
	Hash string
}

// sums adds keys up in their order.
type sums struct {
	hash hash.Hash
	keys int
}

func (s *sums) add(name string, kv *mvccpb.KeyValue) {
	if kv.Lease != 0 {
		return
	}
	s.keys++
	fmt.Fprintf(s.hash, "%d %s %d ", len(name), name, len(kv.Value))
	s.hash.Write(kv.Value)
}

func (s *sums) sum() Sum { return Sum{s.keys, hex.EncodeToString(s.hash.Sum(nil))} }

// Sum reads all keys as of one revision.
func (k Keys) Sum(ctx context.Context) (Sum, error) {
	s := &sums{hash: sha256.New()}
	err := k.each(ctx, func(name string, kv *mvccpb.KeyValue) error {
		s.add(name, kv)
		return nil
	})
	return s.sum(), err
}

// each visits the objects in pages, all at one revision, by their names behind the prefix.
func (k Keys) each(ctx context.Context, visit func(name string, kv *mvccpb.KeyValue) error) error {
	from, revision := k.Prefix+"/", int64(0)
	for at, end := from, clientv3.GetPrefixRangeEnd(from); ; {
		r, err := k.Client.Get(ctx, at, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(revision))
		if err != nil {
			return fmt.Errorf("read the keys below %s: %w", k.Prefix, err)
		}
		revision = cmp.Or(revision, r.Header.Revision)
		for _, kv := range r.Kvs {
			name := strings.TrimPrefix(string(kv.Key), k.Prefix)
			if strings.HasPrefix(name, own) {
				continue
			}
			if err := visit(name, kv); err != nil {
				return err
			}
		}
		if !r.More || len(r.Kvs) == 0 {
			return nil
		}
		at = string(r.Kvs[len(r.Kvs)-1].Key) + "\x00"
	}
}

// Copy writes the keys to another place as of one revision, ignoring later writes, and proves by reading them there
// that nothing is missing or changed.
func (k Keys) Copy(ctx context.Context, to Keys) (Sum, error) {
	p, want := &puts{to: to}, &sums{hash: sha256.New()}
	err := k.each(ctx, func(name string, kv *mvccpb.KeyValue) error {
		want.add(name, kv)
		return p.add(ctx, name, kv)
	})
	if err != nil {
		return Sum{}, err
	}
	if err := p.flush(ctx); err != nil {
		return Sum{}, err
	}
	got, err := to.Sum(ctx)
	if err == nil && got != want.sum() {
		err = fmt.Errorf("%d keys were copied, and %d are there, or others: does another program write below %s?", want.keys,
			got.Keys, to.Prefix)
	}
	return got, err
}

// puts are keys that are written together.
type puts struct {
	to    Keys
	lease clientv3.LeaseID
	ops   []clientv3.Op
	bytes int
}

func (p *puts) add(ctx context.Context, name string, kv *mvccpb.KeyValue) error {
	for _, provider := range []string{"aesgcm", "kms"} {
		if strings.HasPrefix(string(kv.Value), "k8s:enc:"+provider+":") {
			return fmt.Errorf("%w: %s is encrypted by the provider %s, which binds it to its key of etcd; have it encrypted by "+
				"secretbox before", ErrBound, name, provider)
		}
	}
	if len(p.ops) >= mostPuts || p.bytes+len(kv.Value) > mostBytes {
		if err := p.flush(ctx); err != nil {
			return err
		}
	}
	var options []clientv3.OpOption
	if kv.Lease != 0 {
		if p.lease == 0 {
			l, err := p.to.Client.Grant(ctx, shortLife)
			if err != nil {
				return fmt.Errorf("write keys below %s: %w", p.to.Prefix, err)
			}
			p.lease = l.ID
		}
		options = append(options, clientv3.WithLease(p.lease))
	}
	p.ops = append(p.ops, clientv3.OpPut(p.to.Prefix+name, string(kv.Value), options...))
	p.bytes += len(name) + len(kv.Value)
	return nil
}

func (p *puts) flush(ctx context.Context) error {
	if len(p.ops) == 0 {
		return nil
	}
	if _, err := p.to.Client.Txn(ctx).Then(p.ops...).Commit(); err != nil {
		return fmt.Errorf("write keys below %s: %w", p.to.Prefix, err)
	}
	p.ops, p.bytes = nil, 0
	return nil
}

// Fill copies the keys of the control plane with an authority below the prefix, which must be empty, or have a copy
// that has not ended, or the same keys. No control plane starts with them until the copy is complete; it can be
// repeated, also after a crash.
func (s *Store) Fill(ctx context.Context, from Keys, ca []byte) (Sum, error) {
	switch err := s.Recognize(ctx, ca); {
	case err == nil:
		return s.filled(ctx, from)
	case !errors.Is(err, ErrEmpty) && !errors.Is(err, errFilling):
		return Sum{}, err
	}
	filling := identity{Format: Format, CA: hashOf(ca), Filling: true}
	if err := s.clear(ctx, filling); err != nil {
		return Sum{}, err
	}
	if err := s.claim(ctx, filling); err != nil {
		return Sum{}, err
	}
	sum, err := from.Copy(ctx, s.Keys())
	if err != nil {
		return Sum{}, err
	}
	filling.Filling = false
	if _, err := s.client.Put(ctx, s.options.Prefix+identityKey, filling.String()); err != nil {
		return Sum{}, s.unreadable(err)
	}
	return sum, nil
}

// filled returns the sum of a copy that has ended, or an error if the prefix has other keys of the control plane.
func (s *Store) filled(ctx context.Context, from Keys) (Sum, error) {
	have, err := s.Keys().Sum(ctx)
	if err != nil {
		return Sum{}, err
	}
	if want, err := from.Sum(ctx); err != nil || have == want {
		return have, err
	}
	return Sum{}, fmt.Errorf("%w: %s has objects of this control plane; choose another --etcd-prefix, or delete what is "+
		"there", ErrInUse, s.options.Prefix)
}

// clear deletes what a copy has left that did not end.
func (s *Store) clear(ctx context.Context, filling identity) error {
	key := s.options.Prefix + identityKey
	_, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.Value(key), "=", filling.String())).
		Then(clientv3.OpDelete(s.options.Prefix+"/", clientv3.WithPrefix())).Commit()
	if err != nil {
		return s.unreadable(err)
	}
	return nil
}
