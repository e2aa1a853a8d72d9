package flex

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// Version and kind of a Config.
const (
	ConfigVersion = "volplane.dev/v1alpha1"
	ConfigKind    = "FlexConfig"
)

// Values of Settings.VolumeName: the name of a volume in calls of attach and detach.
const (
	// NameByDriver is the result of getvolumename (F-018).
	NameByDriver = "driver"
	// NameOfVolume is the name of the PersistentVolume, as in Kubernetes.
	NameOfVolume = "pv"
)

// Config is the administrator's configuration of FlexVolume drivers.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Policy says who may use which driver inline.
	Policy Policy `json:"allow"`
	// Drivers are settings by name ("example.com/lofs").
	Drivers map[string]Settings `json:"drivers"`
}

// Settings configure one driver. The zero value is the default.
type Settings struct {
	// VolumeName is NameByDriver or NameOfVolume; "" stands for NameByDriver.
	VolumeName string `json:"volumeName"`
	// Timeout is the time limit of each call except waitforattach; 0 stands for 5 minutes. The
	// limit of init is at most 10 s.
	Timeout metav1.Duration `json:"timeout"`
	// WaitTimeout is the time limit of waitforattach; 0 stands for 10 minutes.
	WaitTimeout metav1.Duration `json:"waitTimeout"`
	// Provision allows the creation of volumes, which consist only of options.
	Provision bool `json:"provision"`
	// SkipExpandVolume says that expandvolume is not called. No other host calls it.
	SkipExpandVolume bool `json:"skipExpandVolume"`
}

// Limit returns the time limit of a call.
func (s Settings) Limit(op Operation) time.Duration {
	const initLimit, waitLimit, otherLimit = 10 * time.Second, 10 * time.Minute, 5 * time.Minute
	switch {
	case op == OpInit && s.Timeout.Duration > 0:
		return min(initLimit, s.Timeout.Duration)
	case op == OpInit:
		return initLimit
	case op == OpWaitForAttach && s.WaitTimeout.Duration > 0:
		return s.WaitTimeout.Duration
	case op == OpWaitForAttach:
		return waitLimit
	case s.Timeout.Duration > 0:
		return s.Timeout.Duration
	default:
		return otherLimit
	}
}

// Of returns the settings of a driver.
func (c Config) Of(n Name) Settings { return c.Drivers[n.String()] }

// maxConfig is the size limit of a configuration, in bytes.
const maxConfig = 1 << 20

// ErrConfig says that a text is not a valid configuration.
var ErrConfig = errors.New("not a configuration of FlexVolume drivers")

// ParseConfig parses a configuration in YAML. Unknown fields are errors. The error wraps ErrConfig.
func ParseConfig(b []byte) (Config, error) {
	if len(b) > maxConfig {
		return Config{}, fmt.Errorf("%w: it has %d bytes, %d are allowed", ErrConfig, len(b), maxConfig)
	}
	var c Config
	if err := yaml.UnmarshalStrict(b, &c); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if c.APIVersion != ConfigVersion || c.Kind != ConfigKind {
		return Config{}, fmt.Errorf("%w: it begins with apiVersion: %s and kind: %s", ErrConfig, ConfigVersion, ConfigKind)
	}
	var keys map[string]any
	if err := yaml.Unmarshal(b, &keys); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	if _, there := keys["allow"]; there && c.Policy == nil {
		// All rules taken out must not allow everything.
		return Config{}, fmt.Errorf("%w: allow is empty: write [] to allow no inline volume, or omit it to allow all",
			ErrConfig)
	}
	for i, r := range c.Policy {
		if err := r.check(); err != nil {
			return Config{}, fmt.Errorf("%w: rule %d: %w", ErrConfig, i+1, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Drivers)) {
		if err := c.Drivers[name].check(name); err != nil {
			return Config{}, fmt.Errorf("%w: %w", ErrConfig, err)
		}
	}
	return c, nil
}

func (s Settings) check(name string) error {
	if _, err := ParseName(name); err != nil {
		return err
	}
	if s.VolumeName != "" && s.VolumeName != NameByDriver && s.VolumeName != NameOfVolume {
		return fmt.Errorf("driver %s: volumeName is %q: it can be %q or %q", name, s.VolumeName, NameByDriver, NameOfVolume)
	}
	if s.Timeout.Duration < 0 || s.WaitTimeout.Duration < 0 {
		return fmt.Errorf("driver %s: a time limit is negative", name)
	}
	return nil
}

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

// capabilities lays what a driver says over the defaults, key by key; null, of all or of one, says nothing.
func capabilities(raw json.RawMessage) (Capabilities, error) {
	c := Defaults()
	err := decode("capabilities", raw, &c)
	return c, err
}
