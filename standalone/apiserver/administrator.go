package apiserver

import (
	"fmt"
	"time"

	"volplane.dev/volplane/internal/durable"
)

// keepAdministrator ensures that the administrator's kubeconfig is valid. Copies of its
// certificate stay valid until they expire, so an existing certificate is reused while
// its remaining validity suffices.
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
