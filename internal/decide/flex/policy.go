package flex

import (
	"fmt"
	"maps"
	"regexp"
	"slices"

	"volplane.dev/volplane/internal/volume"
)

// Policy says who may use which driver inline in a Pod with which options. Nil
// allows everything, one without rules nothing.
type Policy []Rule

// Rule allows a driver's inline volumes.
type Rule struct {
	// Namespaces whose Pods it is for; empty is all.
	Namespaces []string `json:"namespaces"`
	// Driver is a name ("example.com/lofs"), or "*" for all.
	Driver string `json:"driver"`
	// Options maps each key that may be given to an RE2 pattern that its whole
	// value has to match. The key "*" is for keys that are not named, and
	// KeyFSType for the type of filesystem.
	Options map[string]string `json:"options"`
}

// anyName stands for every driver and for every key that has no rule of its own.
const anyName = "*"

// Allow says whether a Pod's author may use the driver with a type of filesystem,
// "" if he names none, and these options: one rule has to fit all of it. The
// reason names the driver, the namespace and the key that no rule allows, never a
// value.
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
		why += fmt.Sprintf("; rule %d does not allow the option %q so", i+1, bounded(key, maxShown))
	}
	if p == nil {
		return true, volume.Because{Reason: volume.ReasonFlexAllowed, Message: "no policy restricts inline volumes"}
	}
	return false, volume.Because{Reason: volume.ReasonFlexNotAllowed, Message: why, Next: "administrator"}
}

func (r Rule) isFor(namespace string, n Name) bool {
	return (len(r.Namespaces) == 0 || slices.Contains(r.Namespaces, namespace)) &&
		(r.Driver == anyName || r.Driver == n.String())
}

// fits returns the first option, by name, that the rule does not allow.
func (r Rule) fits(options map[string]string) (key string, ok bool) {
	for _, key := range slices.Sorted(maps.Keys(options)) {
		pattern, named := r.Options[key]
		if !named {
			pattern, named = r.Options[anyName]
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

// anchored returns a pattern that a whole value has to match.
func anchored(pattern string) (*regexp.Regexp, error) {
	// One that is only a pattern together with what surrounds it is none.
	if _, err := regexp.Compile(pattern); err != nil {
		return nil, err
	}
	return regexp.Compile(`\A(?:` + pattern + `)\z`)
}

func (r Rule) check() error {
	if r.Driver != anyName {
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
