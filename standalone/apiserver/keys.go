package apiserver

import (
	"fmt"
	"io"
	"os"
	"time"

	"volplane.dev/volplane/internal/decide/identity"
	"volplane.dev/volplane/internal/durable"
	"volplane.dev/volplane/standalone/apiserver/membership"
	"volplane.dev/volplane/standalone/apiserver/seal"
	"volplane.dev/volplane/standalone/pki"
)

// plane returns the keys for other control planes of the same objects. sealing is the file with the encryption
// configuration of Secrets.
func (s *Server) plane(o Options, sealing string) membership.Plane {
	return membership.Plane{Prefix: o.External.Prefix, Keys: func() (identity.Keys, error) {
		k, err := s.ca.Keys()
		if err != nil {
			return k, err
		}
		k.Prefix = o.External.Prefix
		if o.EncryptionConfig != "" {
			k.ProviderConfig, err = HashOfConfig(sealing)
			return k, err
		}
		k.Encryption, err = readConfig(sealing)
		return k, err
	}}
}

// HashOfConfig returns the hash of a file of --encryption-provider-config.
func HashOfConfig(file string) (string, error) {
	data, err := readConfig(file)
	return identity.Hash(data), err
}

// readConfig reads a file that says how Secrets are encrypted, which its owner may have linked.
func readConfig(file string) ([]byte, error) {
	const largest = 32 << 10
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("encryption of Secrets: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, largest+1))
	if err != nil {
		return nil, fmt.Errorf("encryption of Secrets by %s: %w", file, err)
	}
	if len(data) > largest {
		return nil, fmt.Errorf("encryption of Secrets by %s: the file has more than %d KiB", file, largest>>10)
	}
	return data, nil
}

// WriteKeys writes the keys of a control plane whose authority has the given hash to a directory, which becomes pki in
// a data directory.
func WriteKeys(dir string, k identity.Keys, authority string) error {
	if err := pki.WriteKeys(dir, k, authority); err != nil {
		return err
	}
	if k.ProviderConfig != "" {
		return nil
	}
	return seal.WriteKey(dir, k.Encryption)
}

// keepAdministrator ensures that the administrator's kubeconfig is valid. Copies of its certificate stay valid until
// they expire, so an existing certificate is reused while its remaining validity suffices.
func (s *Server) keepAdministrator(now time.Time) error {
	const largest = 1 << 20
	// An invalid file is replaced.
	before, _ := durable.ReadFile(s.AdminKubeconfig(), largest)
	identity, ok := s.ca.Kept(before, now, adminUser, adminGroup)
	if !ok {
		var err error
		if identity, err = s.ca.Client(adminUser, adminGroup); err != nil {
			return err
		}
	}
	kubeconfig, err := s.ca.Kubeconfig("https://"+s.address, adminUser, identity)
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	// The file is written even if it is unchanged, which restores its mode.
	return durable.WriteFile(s.AdminKubeconfig(), kubeconfig)
}
