package seal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"k8s.io/apiserver/pkg/storage/value"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/durable"
)

const (
	// keyFile is volplane's own file, in the form of Kubernetes.
	keyFile = "encryption.yaml"
	// markFile means that the database may still hold earlier clear text.
	markFile = "encryption.under-way"
	// page is how many Secrets are read per request.
	page = 200
)

// ErrUnreadable says that there are Secrets that cannot be decrypted.
var ErrUnreadable = errors.New("secrets cannot be read")

// Options says which Secrets to encrypt, and how.
type Options struct {
	// Etcd is where the Secrets are, and Prefix the common prefix of their keys.
	Etcd   clientv3.KV
	Prefix string
	// Defragment rewrites the database without deleted data; nil if others run the store.
	Defragment func() error
	// Dir is where volplane's own key is kept.
	Dir string
	// File is the user's own EncryptionConfiguration; "" means none.
	File string
	// Forget deletes the Secrets whose key is lost.
	Forget bool
}

// Secrets makes sure that all Secrets can be read and are encrypted as they should be, and returns the configuration
// file for the API server. Nothing else may write to etcd at the same time. It can be interrupted at any moment and
// repeated.
func Secrets(ctx context.Context, o Options) (file string, err error) {
	file = o.File
	if file == "" {
		file = filepath.Join(o.Dir, keyFile)
		if err := o.ensureKey(ctx, file); err != nil {
			return "", err
		}
	}
	// What loading begins in the background ends with this.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	config, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "")
	if err != nil {
		return "", fmt.Errorf("encryption of Secrets by %s: %w", file, err)
	}
	how := encryptionconfig.StaticTransformers(config.Transformers).TransformerForResource(schema.GroupResource{
		Resource: "secrets",
	})
	found, err := o.scan(ctx, how)
	if err != nil {
		return "", err
	}
	if err := o.giveUp(ctx, file, found); err != nil {
		return "", err
	}
	return file, o.encrypt(ctx, how, found.stale)
}

// ensureKey makes the key if there is none yet. A lost key is not replaced by a new one, which would make the loss look
// like a first start.
func (o Options) ensureKey(ctx context.Context, file string) error {
	_, err := os.Lstat(file)
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	found, err := o.scan(ctx, nil)
	if err != nil {
		return err
	}
	if err := o.giveUp(ctx, file, found); err != nil {
		return err
	}
	config, err := newConfig()
	if err != nil {
		return err
	}
	return durable.WriteFile(file, config)
}

// giveUp reports what is lost, or deletes it if the user wishes so.
func (o Options) giveUp(ctx context.Context, file string, f findings) error {
	switch {
	case len(f.unreadable) == 0:
		return nil
	case o.Forget && o.File == "":
		for _, e := range f.unreadable {
			slog.Warn("a Secret that cannot be read any more is deleted", "secret", e.name, "key", e.sealed)
			if err := o.replace(ctx, e, clientv3.OpDelete(e.key)); err != nil {
				return err
			}
		}
		return nil
	case o.File != "":
		return fmt.Errorf("%w: %s, by the file of --encryption-provider-config, %s (%w). Nothing was changed, and "+
			"everything else is whole. Add the provider and the key with which they were written, as the last one, and start "+
			"again: volplane's own is in %s if it wrote them",
			ErrUnreadable, f.lost(), o.File, f.unreadable[0].err, filepath.Join(o.Dir, keyFile))
	default:
		return fmt.Errorf("%w: %s, and %s does not have that key. Nothing was changed, and everything else is whole. "+
			"Put that file back from a backup of the data directory, or name your own with --encryption-provider-config if "+
			"you gave one before. If the key is permanently lost, so are these Secrets: --forget-unreadable-secrets, used for "+
			"one start, deletes them, and then they can be created again",
			ErrUnreadable, f.lost(), file)
	}
}

// encrypt writes stale entries again, and drops their old revisions from the database. The mark makes the next start
// complete an interrupted one.
func (o Options) encrypt(ctx context.Context, how value.Transformer, stale []entry) error {
	mark := filepath.Join(o.Dir, markFile)
	if _, err := os.Lstat(mark); errors.Is(err, fs.ErrNotExist) && len(stale) == 0 {
		return nil
	}
	if err := durable.WriteFile(mark, nil); err != nil {
		return err
	}
	for _, e := range stale {
		if err := o.rewrite(ctx, how, e); err != nil {
			return err
		}
	}
	if err := o.shrink(ctx); err != nil {
		return fmt.Errorf("take what was in clear out of the data base: %w", err)
	}
	if len(stale) > 0 {
		slog.Info("secrets are encrypted", "secrets", len(stale))
	}
	return durable.Remove(mark)
}

// about explains the file to people who find it.
const about = "# The key of all Secrets in the data directory. Without this file they are lost.\n"

// newConfig makes a key, and the configuration with which the API server uses it. Secrets in clear text remain readable
// until they are written again.
func newConfig() ([]byte, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make key of Secrets: %w", err)
	}
	// The name is in each value: another key of the same name would be mistaken for the right one.
	id := sha256.Sum256(key)
	secretbox := &apiserverv1.SecretboxConfiguration{Keys: []apiserverv1.Key{{
		Name: "volplane-" + hex.EncodeToString(id[:4]), Secret: base64.StdEncoding.EncodeToString(key),
	}}}
	data, err := yaml.Marshal(&apiserverv1.EncryptionConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: apiserverv1.SchemeGroupVersion.String(), Kind: "EncryptionConfiguration"},
		Resources: []apiserverv1.ResourceConfiguration{{
			Resources: []string{"secrets"},
			Providers: []apiserverv1.ProviderConfiguration{
				{Secretbox: secretbox}, {Identity: &apiserverv1.IdentityConfiguration{}},
			},
		}},
	})
	return append([]byte(about), data...), err
}

// WriteKey writes the file with the key of another control plane to a directory, where Secrets finds it. It refuses a
// configuration that cannot encrypt Secrets.
func WriteKey(dir string, config []byte) error {
	file := filepath.Join(dir, keyFile)
	if err := durable.WriteFile(file, config); err != nil {
		return err
	}
	// What loading begins in the background ends with this.
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	loaded, err := encryptionconfig.LoadEncryptionConfig(ctx, file, false, "")
	if err != nil {
		return fmt.Errorf("encryption of Secrets by %s: %w", file, err)
	}
	if loaded.Transformers[schema.GroupResource{Resource: "secrets"}] == nil {
		return fmt.Errorf("encryption of Secrets by %s: the file has no key for them", file)
	}
	return nil
}
