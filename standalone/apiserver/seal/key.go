package seal

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/server/options/encryptionconfig"
	"sigs.k8s.io/yaml"

	"volplane.dev/volplane/internal/durable"
)

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
