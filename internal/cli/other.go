//go:build !linux

package cli

import "context"

// Programs is empty: for other systems than Linux there is only kubectl's plugin.
type Programs struct{}

// tellPlanted says nothing, because no driver runs here.
func (s *shell) tellPlanted(context.Context) {}
