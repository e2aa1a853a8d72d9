// Package finding has the form in which checks of drivers and of their files report what they found.
package finding

// Level is the severity of a Finding.
type Level string

// Levels of findings.
const (
	Pass Level = "pass"
	// Warn: a matter of form, which hosts can handle.
	Warn Level = "warn"
	// Fail: the driver does not work in some host, or data or a secret is lost.
	Fail Level = "fail"
)

// Finding is the result of one check of a driver or of a plugin directory.
type Finding struct {
	// Check is the name of the check, with the same meaning in all versions.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Path is the file that the finding is about; empty if it is the driver as a whole.
	Path string `json:"path,omitempty"`
	// Message is one sentence without secrets. Next says who should do what; it is empty if no
	// action is needed.
	Message string `json:"message"`
	Next    string `json:"next,omitempty"`
	// Breaks are the hosts in which a driver with this finding does not work, or loses data; none if
	// the level says all.
	Breaks []Host `json:"breaks,omitempty"`
}

// Host is a program that calls drivers.
type Host string

// Person is a person who can act on a Finding.
type Person string

// Persons who can act.
const (
	Author        Person = "driver's author"
	Administrator Person = "administrator"
)

// Should returns an advice that names the person; "" if there is none.
func (p Person) Should(advice string) string {
	if advice == "" {
		return ""
	}
	return string(p) + ": " + advice
}

// Worst returns the worst level of findings; Pass if there are none.
func Worst(all []Finding) Level {
	worst := Pass
	for _, f := range all {
		if f.Level == Fail || f.Level == Warn && worst == Pass {
			worst = f.Level
		}
	}
	return worst
}
