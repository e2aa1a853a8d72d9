//go:build linux

package shell

import "volplane.dev/volplane/internal/flex"

// FlexRoot is the default root directory of a bridge.
const FlexRoot = "/var/lib/volplane-flex"

// BridgeOptions configure the bridge that serves the FlexVolume drivers of a host.
type BridgeOptions = flex.BridgeOptions
