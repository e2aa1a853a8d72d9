package flex

import "encoding/json"

// Capabilities are what init says of a driver.
type Capabilities struct {
	// Attach: there is an attach, and a device to mount, before the mount.
	Attach bool `json:"attach"`
	// SELinuxRelabel: the files may be relabelled.
	SELinuxRelabel bool `json:"selinuxRelabel"`
	// SupportsMetrics: the filesystem's own numbers are the volume's.
	SupportsMetrics bool `json:"supportsMetrics"`
	// FSGroup: the host gives the files to the Pod's group.
	FSGroup bool `json:"fsGroup"`
	// RequiresFSResize: a larger volume needs expandfs on the node.
	RequiresFSResize bool `json:"requiresFSResize"`
}

// Defaults returns what holds for each capability that a driver does not name.
func Defaults() Capabilities {
	return Capabilities{Attach: true, SELinuxRelabel: true, FSGroup: true, RequiresFSResize: true}
}

// capabilities lays what a driver says over the defaults, key by key; null, of
// all or of one, says nothing.
func capabilities(raw json.RawMessage) (Capabilities, error) {
	c := Defaults()
	err := decode("capabilities", raw, &c)
	return c, err
}
