package flex

// Level is the severity of a Finding.
type Level string

// Levels of findings.
const (
	Pass Level = "pass"
	// Warn: hosts can handle it.
	Warn Level = "warn"
	// Fail: some host cannot handle it, or data is lost.
	Fail Level = "fail"
)

// Finding is the result of one check of a driver or of a plugin directory.
type Finding struct {
	// Check is the name of the check, with the same meaning in all versions.
	Check string `json:"check"`
	Level Level  `json:"level"`
	// Path is the file that the finding is about; empty if it is the driver as a whole.
	Path string `json:"path,omitempty"`
	// Message is one sentence without secrets. Next is the advice, if the message does not contain
	// it.
	Message string `json:"message"`
	Next    string `json:"next,omitempty"`
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
