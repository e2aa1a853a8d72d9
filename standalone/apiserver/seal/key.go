package seal

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiserverv1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"sigs.k8s.io/yaml"
)

// about tells who finds the file what it is.
const about = "# The key of all Secrets in the data directory. Without this file they are lost.\n"

// newConfig makes a key, and what tells the API server to use it. What is in clear
// can be read, too, until it is written anew.
func newConfig() ([]byte, error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make key of Secrets: %w", err)
	}
	// The name is in each value: another key by the same name would be taken for
	// the right one.
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
