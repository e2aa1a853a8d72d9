package external

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Format is the version of the keys below a prefix that this program writes. It reads all older versions.
const Format = 1

// own begins the keys below a prefix that are not objects of the API: no resource and no group has a name that begins
// with a dot.
const own = "/.volplane/"

// identityKey is the key that says whose the others are.
const identityKey = own + "identity"

// claimLimit bounds each request of a start, which may find a store that permits nothing.
const claimLimit = 10 * time.Second

// Reasons why a store is refused.
var (
	ErrAnother = errors.New("prefix of another control plane")
	ErrNewer   = errors.New("store of a newer version")
	ErrInUse   = errors.New("prefix with other keys")
	ErrEmpty   = errors.New("empty prefix")
	// ErrReplaced says that the store is not the one that responded before.
	ErrReplaced = errors.New("the store was replaced while it was used")
	errFilling  = errors.New("incomplete copy")
)

// identity identifies the owner of the keys below a prefix.
type identity struct {
	Format int `json:"format"`
	// CA is the hash of the certificate of the control plane's authority.
	CA string `json:"ca"`
	// Filling means that a copy has begun and is incomplete.
	Filling bool `json:"filling,omitempty"`
}

// String returns the value of the key.
func (id identity) String() string {
	value, _ := json.Marshal(id) // of these types that cannot fail
	return string(value)
}

// formatOf returns the format that the value of the key says, 0 if it says none.
func formatOf(value []byte) int {
	var id identity
	_ = json.Unmarshal(value, &id)
	return id.Format
}

func hashOf(ca []byte) string {
	sum := sha256.Sum256(ca)
	return hex.EncodeToString(sum[:])
}

// Recognize changes nothing. It returns an error unless the keys below the prefix are those of the control plane with
// an authority; the error is ErrEmpty if there are none.
func (s *Store) Recognize(ctx context.Context, ca []byte) error {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	prefix := s.options.Prefix
	found, err := s.client.Get(ctx, prefix+identityKey)
	if err != nil {
		return s.unreadable(err)
	}
	if len(found.Kvs) > 0 {
		return s.compare(found.Kvs[0].Value, ca)
	}
	others, err := s.client.Get(ctx, prefix+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil {
		return s.unreadable(err)
	}
	if others.Count > 0 {
		return fmt.Errorf("%w: there are %d keys below %s that no control plane of volplane has begun with; choose another "+
			"--etcd-prefix", ErrInUse, others.Count, prefix)
	}
	if err := s.nested(ctx); err != nil {
		return err
	}
	return fmt.Errorf("%w: there is nothing below %s", ErrEmpty, prefix)
}

// nested returns an error if the prefix is below that of another control plane, whose backups would have its keys. Keys
// that this control plane may not read cannot be harmed by it.
func (s *Store) nested(ctx context.Context) error {
	for above := path.Dir(s.options.Prefix); above != "/"; above = path.Dir(above) {
		found, err := s.client.Get(ctx, above+identityKey, clientv3.WithCountOnly())
		if err != nil && !errors.Is(err, rpctypes.ErrPermissionDenied) {
			return s.unreadable(err)
		}
		if err == nil && found.Count > 0 {
			return fmt.Errorf("%w: %s is below %s, which is the prefix of a control plane; choose another --etcd-prefix",
				ErrInUse, s.options.Prefix, above)
		}
	}
	return nil
}

func (s *Store) unreadable(err error) error {
	return fmt.Errorf("read %s in the store: %w; if etcd has authentication, the user who is the common name of "+
		"--etcd-certfile needs a role that may read and write all keys with this prefix", s.options.Prefix, err)
}

func (s *Store) compare(value, ca []byte) error {
	var id identity
	if err := json.Unmarshal(value, &id); err != nil || id.Format < 1 {
		return fmt.Errorf("%w: the key %s%s is not what volplane writes; choose another --etcd-prefix", ErrInUse,
			s.options.Prefix, identityKey)
	}
	if id.Format > Format {
		return fmt.Errorf("%w: %s has format %d, this program knows %d; use the program that wrote it", ErrNewer,
			s.options.Prefix, id.Format, Format)
	}
	if id.CA != hashOf(ca) {
		return fmt.Errorf("%w: %s belongs to the one whose certificate authority has the hash %.12s, this one's has %.12s; "+
			"choose another --etcd-prefix, or put the directory pki of that control plane in the data directory", ErrAnother,
			s.options.Prefix, id.CA, hashOf(ca))
	}
	if id.Filling {
		return fmt.Errorf("%w: volplane restore or volplane migrate-store has not copied all keys to %s: run it again",
			errFilling, s.options.Prefix)
	}
	return nil
}

// Claim assigns an empty prefix to the control plane with an authority.
func (s *Store) Claim(ctx context.Context, ca []byte) error {
	return s.claim(ctx, identity{Format: Format, CA: hashOf(ca)})
}

func (s *Store) claim(ctx context.Context, id identity) error {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	key := s.options.Prefix + identityKey
	r, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, id.String())).Commit()
	if err != nil {
		return s.unreadable(err)
	}
	if !r.Succeeded {
		return fmt.Errorf("%w: another process has begun with %s a moment ago", ErrInUse, s.options.Prefix)
	}
	return nil
}
