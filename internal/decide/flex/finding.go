package flex

// Level says how bad a Finding is.
type Level string

// Levels of findings.
const (
	Pass Level = "pass"
	// Warn is what hosts can live with.
	Warn Level = "warn"
	// Fail is what some host cannot live with, or what loses data.
	Fail Level = "fail"
)

// Finding is what one check of a driver or of a plugin directory found, whoever
// checked.
type Finding struct {
	// Check is its name: the same, and of the same meaning, in every version.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Path is what it is about, where that is not the driver as a whole.
	Path string `json:"path,omitempty"`
	// Message is one sentence, without secrets; Next is what to do about it,
	// where that does not say so itself.
	Message string `json:"message"`
	Next    string `json:"next,omitempty"`
}

// Worst returns the worst level of findings, Pass without any.
func Worst(all []Finding) Level {
	worst := Pass
	for _, f := range all {
		if f.Level == Fail || f.Level == Warn && worst == Pass {
			worst = f.Level
		}
	}
	return worst
}
