package apiserver

import (
	"fmt"
	"time"

	"volplane.dev/volplane/internal/durable"
)

// keepAdministrator makes sure of the administrator's kubeconfig. A certificate
// can be copied, and counts to its end: so the one that is there is used again as
// long as it holds for long enough.
func (s *Server) keepAdministrator(now time.Time) error {
	const largest = 1 << 20
	// Whatever is wrong with what is there, it is made anew.
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
	// Also when nothing has changed: the mode is part of what it should be.
	return durable.WriteFile(s.AdminKubeconfig(), kubeconfig)
}
