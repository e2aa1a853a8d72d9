package flex

import (
	"encoding/json"
	"strings"
)

// Capabilities are the capabilities of a driver, as init returns them.
type Capabilities struct {
	// Attach: volumes are attached, and have a device that is mounted first.
	Attach bool `json:"attach"`
	// SELinuxRelabel: files may be relabelled.
	SELinuxRelabel bool `json:"selinuxRelabel"`
	// SupportsMetrics: the space of the filesystem is that of the volume.
	SupportsMetrics bool `json:"supportsMetrics"`
	// FSGroup: the host changes the group of the files to the Pod's fsGroup.
	FSGroup bool `json:"fsGroup"`
	// RequiresFSResize: after an expansion of the volume, expandfs must be called on the node.
	RequiresFSResize bool `json:"requiresFSResize"`
}

// Defaults returns what holds for each capability that a driver does not name.
func Defaults() Capabilities {
	return Capabilities{Attach: true, SELinuxRelabel: true, FSGroup: true, RequiresFSResize: true}
}

// Words returns the capabilities as a text for people.
func (c Capabilities) Words() string {
	var words []string
	for _, one := range []struct {
		has  bool
		name string
	}{
		{c.Attach, "attach"},
		{c.FSGroup, "fsGroup"},
		{c.RequiresFSResize, "requiresFSResize"},
		{c.SELinuxRelabel, "selinuxRelabel"},
		{c.SupportsMetrics, "supportsMetrics"},
	} {
		if one.has {
			words = append(words, one.name)
		}
	}
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ",")
}

// capabilities lays what a driver says over the defaults, key by key; null, of
// all or of one, says nothing.
func capabilities(raw json.RawMessage) (Capabilities, error) {
	c := Defaults()
	err := decode("capabilities", raw, &c)
	return c, err
}
