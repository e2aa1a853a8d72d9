package volume

import "strings"

// CutName returns the name in the request to a driver: a prefix and a UID. A length above 0 cuts the UID, without its
// hyphens, to so many characters; the name is no longer unique then.
func CutName(prefix, uid string, length int) string {
	if length > 0 {
		uid = strings.ReplaceAll(uid, "-", "")
		uid = uid[:min(length, len(uid))]
	}
	return prefix + "-" + uid
}
