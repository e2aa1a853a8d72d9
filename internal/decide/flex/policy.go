package flex

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"volplane.dev/volplane/internal/volume"
)

// Policy says which Pods may use which drivers for inline volumes, and with which options. Nil
// allows everything, an empty Policy nothing.
type Policy []Rule

// Rule allows a driver's inline volumes.
type Rule struct {
	// Namespaces are the namespaces of the Pods; empty stands for all.
	Namespaces []string `json:"namespaces"`
	// Driver is the name of a driver ("example.com/lofs"), or "*" for all.
	Driver string `json:"driver"`
	// Options maps each allowed key to an RE2 pattern that the whole value must match. The key "*"
	// is for all other keys, and KeyFSType for the filesystem type.
	Options map[string]string `json:"options"`
}

// wildcard stands for every driver, and for every key without a pattern.
const wildcard = "*"

// Allow says whether the author of a Pod may use the driver with a filesystem type, which may be
// "", and these options: one rule must allow all of it. The reason names the driver, the namespace
// and the key that no rule allows, but no value.
func (p Policy) Allow(namespace string, n Name, fsType string, options map[string]string) (bool, volume.Because) {
	if fsType != "" {
		// It is as much the author's word to the driver as any option.
		given := map[string]string{KeyFSType: fsType}
		maps.Copy(given, options)
		options = given
	}
	why := fmt.Sprintf("no rule allows driver %s in namespace %s", n, namespace)
	for i, r := range p {
		if !r.isFor(namespace, n) {
			continue
		}
		key, fits := r.fits(options)
		if fits {
			return true, volume.Because{
				Reason:  volume.ReasonFlexAllowed,
				Message: fmt.Sprintf("rule %d allows driver %s in namespace %s", i+1, n, namespace),
			}
		}
		why += fmt.Sprintf("; rule %d does not allow the option %q so", i+1, bounded(key))
	}
	if p == nil {
		return true, volume.Because{Reason: volume.ReasonFlexAllowed, Message: "no policy restricts inline volumes"}
	}
	return false, volume.Say(volume.ReasonFlexNotAllowed, volume.AnyAdministrator(), why)
}

func (r Rule) isFor(namespace string, n Name) bool {
	return (len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, namespace)) &&
		(r.Driver == wildcard || r.Driver == n.String())
}

// fits returns the first option, ordered by name, that the rule does not allow.
func (r Rule) fits(options map[string]string) (key string, ok bool) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		pattern, named := r.Options[key]
		if !named {
			pattern, named = r.Options[wildcard]
		}
		if !named {
			return key, false
		}
		whole, err := anchored(pattern)
		if err != nil || !whole.MatchString(options[key]) {
			return key, false
		}
	}
	return "", true
}

// anchored returns a pattern that must match a whole value.
func anchored(pattern string) (*regexp.Regexp, error) {
	// A text that is a valid pattern only together with the anchors is refused.
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}

func (r Rule) check() error {
	if r.Driver != wildcard {
		if _, err := ParseName(r.Driver); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(r.Options)) {
		if _, err := anchored(r.Options[key]); err != nil {
			return fmt.Errorf("option %q: %w", key, err)
		}
	}
	return nil
}
