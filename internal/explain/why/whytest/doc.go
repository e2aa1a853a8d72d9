// Package whytest has a small cluster in which something can be wrong, and the scenes that explanations are tested
// with. It is for tests only.
//
// Life cycle: New makes a Scene in which all is well; a Row changes it and says what is asked about; Written explains
// rows, one after the other, and Equal compares what was written with a file.
package whytest
