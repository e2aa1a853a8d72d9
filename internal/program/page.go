package program

import "time"

// PagePath is the path of the API server at which who has a right to it may ask for an Invitation, by POST.
const PagePath = "/volplane/page"

// Invitation is what a browser needs to see the page.
type Invitation struct {
	// URL opens the page once.
	URL string `json:"url"`
	// Ends is until when it does.
	Ends time.Time `json:"ends"`
}
